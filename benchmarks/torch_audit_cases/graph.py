"""Programs about which layers are used, how often, and what reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.torch_audit_cases.case import (
    CLASSES,
    FEATURES,
    HEALTHY,
    Hands,
    case,
    classify,
    fit,
    mlp,
    rows,
    sgd,
)


class Body(nn.Module):
    """Two layers, and what a case adds to them. run: how they are applied."""

    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor], **more: Any) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        for name, module in more.items():
            setattr(self, name, module)
        self._run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(self, x)


def _plain(body: Any, x: torch.Tensor) -> torch.Tensor:
    return body.two(body.one(x).relu())


@case("unused-layer", "a layer that forward() never calls", checks="TA500 17", codes="TC106")
def unused_layer(hands: Hands) -> None:
    fit(hands, Body(_plain, spare=nn.Linear(FEATURES, CLASSES)), rows())


@case("unused-parameter", "a parameter that is never used", checks="TA500 17", codes="TC106")
def unused_parameter(hands: Hands) -> None:
    fit(hands, Body(_plain, spare=nn.Parameter(torch.ones(FEATURES))), rows())


@case("cut-off-layer", "detach() behind the first layer", checks="TA500 17", codes="TC105")
def cut_off(hands: Hands) -> None:
    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return body.two(body.one(x).relu().detach())

    fit(hands, Body(run), rows())


@case(
    "parameter-list",
    "a ParameterList whose items are used",
    checks="TA500 17",
    codes="TC106",
    kind=HEALTHY,
)
def parameter_list(hands: Hands) -> None:
    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return _plain(body, x * body.scales[0] + body.scales[1])

    scales = nn.ParameterList([torch.ones(FEATURES), torch.zeros(FEATURES)])
    fit(hands, Body(run, scales=scales), rows())


@case(
    "weight-by-function",
    "F.linear(x, head.weight)",
    checks="TA500 17",
    codes="TC106",
    kind=HEALTHY,
)
def weight_by_function(hands: Hands) -> None:
    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(body.one(x).relu(), body.two.weight, body.two.bias)

    fit(hands, Body(run), rows())


@case("layer-drop", "one of four layers a step", checks="TA500 17", codes="TC106", kind=HEALTHY)
def layer_drop(hands: Hands) -> None:
    turn = iter(range(1000))

    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return _plain(body, body.experts[next(turn) % 4](x))

    experts = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(4))
    fit(hands, Body(run, experts=experts), rows(steps=12))


@case("reused-norm", "one batch norm at two places", checks="TA501 18", codes="TC915")
def reused_norm(hands: Hands) -> None:
    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return body.two(body.norm(body.one(body.norm(x)).relu()))

    fit(hands, Body(run, norm=nn.BatchNorm1d(FEATURES)), rows())


@case(
    "reused-layer",
    "one linear layer applied twice, no fault in itself",
    checks="19",
    codes="TC922",
)
def reused_layer(hands: Hands) -> None:
    def run(body: Any, x: torch.Tensor) -> torch.Tensor:
        return body.two(body.one(body.one(x).relu()).relu())

    fit(hands, Body(run), rows())


@case(
    "accumulation",
    "four forwards and backwards a step",
    checks="TA501 18 19",
    codes="TC915",
    kind=HEALTHY,
)
def accumulation(hands: Hands) -> None:
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), mlp())
    optimizer = sgd(model)
    hands.begin(model, optimizer)
    for number, batch in enumerate(rows(steps=16)):
        hands.backward(classify(hands.forward(model, batch[0]), batch) / 4)
        if number % 4 == 3:
            hands.step(optimizer)
            optimizer.zero_grad()
    hands.end()
