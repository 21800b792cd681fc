"""Programs about numbers: not finite, too large, zero, dead."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.torch_audit_cases.case import (
    AUTOPATCH,
    CLASSES,
    DECORATOR,
    FEATURES,
    HEALTHY,
    Hands,
    case,
    classify,
    fit,
    loader,
    mlp,
    row_tensors,
    rows,
    sgd,
)


@case("nan-parameter", "one weight is NaN from the start", checks="TA100 21", codes="TC701")
def nan_parameter(hands: Hands) -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    fit(hands, model, rows())


@case("nan-gradient", "the root of zero has no gradient", checks="TA100 21", codes="TC701")
def nan_gradient(hands: Hands) -> None:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return classify(out, batch) + ((out - out.detach()) ** 2).sum().sqrt()

    fit(hands, mlp(), rows(), loss=loss)


def _broken_row(value: float) -> Any:
    x, y = row_tensors()
    x[4 * 32 + 3, 2] = value
    return loader(x, y, size=32)


@case("nan-input", "one feature of one sample is NaN", checks="13 TA100", codes="TC701")
def nan_input(hands: Hands) -> None:
    fit(hands, mlp(), _broken_row(float("nan")))


@case("inf-input", "one feature of one sample is infinite", checks="13 TA100", codes="TC701")
def inf_input(hands: Hands) -> None:
    fit(hands, mlp(), _broken_row(float("inf")))


@case("explosion", "gradients grow from step to step", checks="TA102 22", codes="TC702")
def explosion(hands: Hands) -> None:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(out, nn.functional.one_hot(batch[1], CLASSES).float())

    model = nn.Linear(FEATURES, CLASSES)
    fit(hands, model, rows(steps=20), optimizer=sgd(model, lr=2.0), loss=loss)


@case(
    "scaled-loss",
    "GradScaler multiplies the loss by 65536 and unscales before the step",
    checks="TA102 22",
    codes="TC702",
    kind=HEALTHY,
)
def scaled_loss(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    hands.begin(model, optimizer)
    for batch in rows():
        optimizer.zero_grad()
        hands.backward(scaler.scale(classify(hands.forward(model, batch[0]), batch)))
        scaler.unscale_(optimizer)
        hands.step(optimizer)
        scaler.update()
    hands.end()


@case(
    "clipped-explosion",
    "gradients of 1e8 that clipping hides",
    checks="TA102 22",
    codes="TC702",
    style=AUTOPATCH,
)
def clipped_explosion(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    for number, batch in enumerate(rows(steps=16)):
        optimizer.zero_grad()
        loss = classify(hands.forward(model, batch[0]), batch)
        hands.backward(loss * (1e8 if number >= 8 else 1.0))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        hands.step(optimizer)
    hands.end()


@case(
    "summed-loss",
    "gradients are large from the start, for the loss is a sum",
    checks="TA102 22",
    codes="TC702",
    kind=HEALTHY,
)
def summed_loss(hands: Hands) -> None:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(out, batch[1], reduction="sum")

    model = mlp()
    fit(hands, model, rows(size=256), optimizer=sgd(model, lr=1e-4), loss=loss)


def _dead(act: type[nn.Module], units: int = 64) -> nn.Sequential:
    model = mlp(act=act)
    with torch.no_grad():
        model[0].bias[:units] = -100.0
    return model


@case("dead-relu", "a ReLU passes nothing on", checks="TA103 TA105 16", codes="TC705 TC704")
def dead_relu(hands: Hands) -> None:
    fit(hands, _dead(nn.ReLU), rows(size=64))


class Functional(nn.Module):
    """A dead layer whose ReLU is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, 64), nn.Linear(64, CLASSES)
        nn.init.constant_(self.one.bias, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(nn.functional.relu(self.one(x)))


@case("dead-functional-relu", "the same by the function", checks="TA103 TA105 16", codes="TC705")
def dead_functional(hands: Hands) -> None:
    fit(hands, Functional(), rows(size=64))


@case("dead-50-of-64", "50 of 64 units are dead", checks="TA105 16", codes="TC705")
def mostly_dead(hands: Hands) -> None:
    fit(hands, _dead(nn.ReLU, units=50), rows(size=64))


@case("dead-leaky-relu", "a LeakyReLU is off everywhere", checks="TA105 16", codes="TC705")
def dead_leaky(hands: Hands) -> None:
    fit(hands, _dead(nn.LeakyReLU), rows(size=64))


@case(
    "sparse-relu",
    "units are on for few samples each, and alive",
    checks="TA105 16",
    codes="TC705",
    kind=HEALTHY,
)
def sparse(hands: Hands) -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight.copy_(nn.functional.normalize(torch.randn(64, FEATURES)))
        model[0].bias.fill_(-2.4)
    fit(hands, model, rows(size=256), optimizer=sgd(model, lr=1e-3))


@case("cleared-gradients", "zero_grad() comes after backward()", checks="TA104 20", codes="TC203")
def cleared(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    for batch in rows():
        hands.backward(classify(hands.forward(model, batch[0]), batch))
        optimizer.zero_grad()
        hands.step(optimizer)
    hands.end()


@case(
    "cleared-at-the-end",
    "zero_grad() is the last line of the step",
    checks="TA104 20",
    codes="TC203 TC202",
    kind=HEALTHY,
    style=DECORATOR,
)
def cleared_at_the_end(hands: Hands) -> None:
    model = mlp()
    optimizer = sgd(model)

    def step(batch: Any) -> None:
        classify(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    hands.begin(model, optimizer)
    step = hands.wrap(step)
    for batch in rows():
        step(batch)
    hands.end()


@case("flat-loss", "rounding makes the loss flat", checks="23 TA103", codes="TC704")
def flat_loss(hands: Hands) -> None:
    def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
        return classify((out * 4).round(), batch)

    fit(hands, mlp(), rows(), loss=loss)


class Adapted(nn.Module):
    """A frozen layer with an adapter that begins with zeros, as LoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.base = mlp().requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, CLASSES, False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


@case(
    "adapter-from-zero",
    "LoRA begins with one matrix of zeros",
    checks="TA103",
    codes="TC704 TC106 TC714",
    kind=HEALTHY,
)
def adapter(hands: Hands) -> None:
    fit(hands, Adapted(), rows())
