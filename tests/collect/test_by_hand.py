"""Programs that update parameters themselves: steps are counted to the last, and judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.sgd import sgd

import traincheck
from tests.checking import BY_CODE, report_of
from tests.collect.recording import Recording, recording

STEPS = 12
Update = Callable[[nn.Module], None]


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def loss(model: nn.Module) -> torch.Tensor:
    x = torch.randn(16, 8)
    return functional.cross_entropy(model(x), x[:, :4].argmax(1))


def held(model: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters and their gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter, parameter.grad


def by_data(model: nn.Module) -> None:
    for parameter, grad in held(model):
        parameter.data.add_(grad, alpha=-0.1)


def without_grad(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter, grad in held(model):
            parameter.sub_(0.1 * grad)


def by_foreach(model: nn.Module) -> None:
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), [g for _, g in held(model)], alpha=-0.1)


def functionally(model: nn.Module) -> None:
    pairs = list(held(model))
    with torch.no_grad():
        sgd(
            [p for p, _ in pairs], [g for _, g in pairs], [None] * len(pairs), foreach=False,
            weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip


def clear(model: nn.Module) -> None:
    model.zero_grad()


def clear_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def zeros_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def nothing(model: nn.Module) -> None:
    """Leaves gradients as they are."""


def train(
    *,
    update: Update = by_data,
    begin: Update = clear,
    end: Update = nothing,
    steps: int = STEPS,
    last: Update | None = None,
    model: nn.Module | None = None,
) -> None:
    """last: in place of the update of the last step."""
    model = make() if model is None else model
    for number in range(steps):
        begin(model)
        loss(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        if last is not None and number == steps - 1:
            last(model)
        else:
            update(model)
        end(model)


def steps_of(run: Recording) -> tuple[int, int]:
    """Complete steps, and others."""
    steps = run.of("step")
    return sum(s.complete for s in steps), sum(not s.complete for s in steps)


def found(run: Recording, *codes: str) -> list[str | None]:
    rules = [BY_CODE[code] for code in codes or ("TC201",)]
    return [finding.code for finding in report_of(run.events, rules).findings]


UPDATES = (by_data, without_grad, by_foreach, functionally)
CLEARINGS = {"head": (clear, nothing), "tail": (nothing, clear_by_hand), "zeros": (zeros_by_hand,)}


@pytest.mark.parametrize("keeps", [True, False], ids=["alive", "dead"])
@pytest.mark.parametrize("clearing", CLEARINGS.values(), ids=CLEARINGS)
@pytest.mark.parametrize("update", UPDATES)
def test_the_last_step_is_counted(
    tmp_path: Path, update: Update, clearing: tuple[Update, ...], keeps: bool
) -> None:
    """Also where the model is gone by then, as at the end of ``main()``."""
    begin, end = (*clearing, nothing)[:2]
    with recording(tmp_path / "run") as run:
        model = make() if keeps else None
        train(update=update, begin=begin, end=end, model=model)
    assert steps_of(run) == (STEPS, 0)
    assert found(run) == []


def fail(model: nn.Module) -> None:
    raise KeyboardInterrupt


def in_part(model: nn.Module) -> None:
    parameter, grad = next(held(model))
    parameter.data.add_(grad, alpha=-0.1)
    raise KeyboardInterrupt


@pytest.mark.parametrize("keeps", [True, False], ids=["alive", "dead"])
@pytest.mark.parametrize("last", [nothing, fail, in_part])
def test_a_step_without_its_update_is_not_over(tmp_path: Path, last: Update, keeps: bool) -> None:
    model = make() if keeps else None
    with recording(tmp_path / "run") as run, suppress(KeyboardInterrupt):
        train(last=last, model=model)
    assert steps_of(run) == (STEPS - 1, 1)


def test_what_comes_after_training_is_no_step(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as run:
        model = make()
        train(model=model)
        with torch.no_grad():
            loss(model.eval())
    assert steps_of(run) == (STEPS, 0)


def test_gradients_that_are_only_looked_at_are_no_update(tmp_path: Path) -> None:
    """Saliency, or Fisher information."""
    with recording(tmp_path / "run") as run:
        train(update=nothing)
    assert steps_of(run) == (STEPS - 1, 1)
    assert found(run) == []


def test_a_watch_counts_and_judges_to_its_end() -> None:
    model = make()
    with traincheck.watch(model, select=["TC201", "TC205"]) as run:
        train(model=model)
    assert run.report().steps == STEPS
    assert list(run.findings) == []
    with traincheck.watch(model, select=["TC201", "TC205"]) as run:
        train(model=model, begin=nothing)
    assert run.report().steps == STEPS
    (finding,) = run.findings
    assert (finding.code, finding.first_step, finding.last_step) == ("TC201", 1, STEPS - 1)


@pytest.mark.parametrize("steps", [STEPS, 70])
@pytest.mark.parametrize("update", UPDATES)
def test_fires_where_nobody_clears_gradients(tmp_path: Path, update: Update, steps: int) -> None:
    """At the end, or after so many that nobody accumulates over them.

    TC205 asks for calls that clip: without them, gradients that differ may be scaled on purpose.
    """
    with recording(tmp_path / "run") as run:
        train(update=update, begin=nothing, steps=steps)
    (finding,) = report_of(run.events, [BY_CODE["TC201"], BY_CODE["TC205"]]).findings
    assert (finding.first_step, finding.last_step) == (1, steps - 1)
    assert "model.zero_grad()" in finding.fix
    assert "optimizer.zero_grad" not in finding.fix + finding.likely_cause
    assert Path(__file__).name in finding.likely_cause


# -- healthy


def accumulates(end: Update, every: int = 4) -> Callable[[], None]:
    def play() -> None:
        model = make()
        for number in range(24):
            loss(model).backward()
            if number % every == every - 1:
                by_data(model)
                end(model)

    return play


def keeps_momentum() -> None:
    """In the gradients themselves."""
    model = make()
    for _ in range(STEPS):
        loss(model).backward()
        by_data(model)
        for _, grad in held(model):
            grad.mul_(0.9)


def accumulates_with_noise() -> None:
    """Weights differ in each pass of an accumulation."""
    model = make()
    for number in range(24):
        noise = [0.01 * torch.randn_like(p) for p in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), noise)
        loss(model).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), noise)
        if number % 8 == 7:
            by_data(model)
            model.zero_grad()


def meta_learns() -> None:
    """First-order MAML: tasks adapt the model itself, and add up what they find."""
    model = make()
    for number in range(24):
        start = copy.deepcopy(model.state_dict())
        grads = torch.autograd.grad(loss(model), list(model.parameters()))
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), list(grads), alpha=-0.1)
        loss(model).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
        if number % 6 == 5:
            by_data(model)
            model.zero_grad()


def penalizes() -> None:
    """A gradient within the loss."""
    model = make()
    for _ in range(STEPS):
        model.zero_grad()
        found = loss(model)
        grads = torch.autograd.grad(found, list(model.parameters()), create_graph=True)
        (found + 0.1 * sum(g.pow(2).sum() for g in grads)).backward()
        by_data(model)


def searches_a_line() -> None:
    """As a closure of LBFGS: several passes for an update."""
    model = make()
    for _ in range(STEPS):
        rate = 1.0
        for _ in range(3):
            model.zero_grad()
            loss(model).backward()
            for parameter, grad in held(model):
                parameter.data.add_(grad, alpha=-rate)
            rate /= 2


def evolves() -> None:
    """Without gradients."""
    model = make()
    for _ in range(STEPS):
        noise = [0.01 * torch.randn_like(p) for p in model.parameters()]
        with torch.no_grad():
            loss(model)
            torch._foreach_add_(list(model.parameters()), noise)


def beside(write: Callable[[nn.Module, nn.Module], None]) -> Callable[[], None]:
    """A second model that is written to after each update."""

    def play() -> None:
        model = make()
        other = copy.deepcopy(model)
        for _ in range(STEPS):
            model.zero_grad()
            with torch.no_grad():
                other(torch.randn(4, 8))
            loss(model).backward()
            by_data(model)
            write(model, other)

    return play


def average(model: nn.Module, other: nn.Module) -> None:
    with torch.no_grad():
        for theirs, mine in zip(other.parameters(), model.parameters(), strict=True):
            theirs.lerp_(mine, 0.1)


def limit(model: nn.Module, _: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


def initialize(model: nn.Module, _: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.normal_(std=0.1)


def mask(model: nn.Module, _: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(parameter.data.abs() > 0.02)


HEALTHY: dict[str, Callable[[], Any]] = {
    "accumulation, by call": accumulates(clear),
    "accumulation, by hand": accumulates(clear_by_hand),
    "accumulation, zeros": accumulates(zeros_by_hand),
    "accumulation with noise": accumulates_with_noise,
    "momentum in the gradients": keeps_momentum,
    "meta-learning": meta_learns,
    "gradient penalty": penalizes,
    "line search": searches_a_line,
    "evolution": evolves,
    "average": beside(average),
    "limits": beside(limit),
    "initialized again": beside(initialize),
    "masks": beside(mask),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_quiet_on_updates_that_are_meant_so(tmp_path: Path, case: str) -> None:
    with recording(tmp_path / "run") as run:
        HEALTHY[case]()
    assert found(run, "TC201", "TC202", "TC301", "TC304", "TC701", "TC702", "TC703", "TC715") == []


# -- other rules, which once asked for an optimizer


def test_tc701_names_what_the_program_breaks(tmp_path: Path) -> None:
    divisors = iter([*[10.0] * 5, 0.0, *[10.0] * STEPS])

    def breaks(model: nn.Module) -> None:
        divisor = next(divisors)
        for parameter, grad in held(model):
            parameter.data.sub_(grad / divisor)

    with recording(tmp_path / "run") as run:
        train(update=breaks)
    (finding,) = report_of(run.events, [BY_CODE["TC701"]]).findings
    assert finding.first_step == 5
    assert "the program" in finding.likely_cause


@pytest.mark.parametrize("is_broken", [True, False])
def test_tc301_judges_a_program_that_updates_by_hand(tmp_path: Path, is_broken: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    with recording(tmp_path / "run") as run:
        for number in range(24):
            model.train(mode=number < 6 or not is_broken)
            model.zero_grad()
            loss(model).backward()
            by_data(model)
    assert found(run, "TC301") == (["TC301"] if is_broken else [])


@pytest.mark.parametrize("is_broken", [True, False])
def test_tc711_judges_a_program_that_updates_by_hand(tmp_path: Path, is_broken: bool) -> None:
    model = make()
    with recording(tmp_path / "run") as run:
        for _ in range(24):
            model.zero_grad()
            value = loss(model)
            (value - value.detach() + 1.0 if is_broken else value).backward()
            by_data(model)
    assert found(run, "TC711", "TC201") == (["TC711"] if is_broken else [])


@pytest.mark.parametrize("is_broken", [True, False])
def test_tc702_judges_a_program_that_updates_by_hand(tmp_path: Path, is_broken: bool) -> None:
    model = make()
    with recording(tmp_path / "run") as run:
        for number in range(40):
            model.zero_grad()
            (loss(model) * (1e5 if is_broken and number in (30, 32) else 1.0)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            by_data(model)
    assert found(run, "TC702") == (["TC702"] if is_broken else [])
