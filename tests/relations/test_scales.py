"""scales: numbers of a whole run, in traces by hand and in a real program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.builders import MLP, TraceBuilder
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.learning import claims, decide, learn, report_of
from traincheck.relations.scales import GRADIENT, LENGTH, LOSS, QUANTITIES, RATE
from traincheck.schema.events import CheckpointEvent, Event, StateEvent
from traincheck.schema.findings import Finding, Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

Events = list[Event]
UPDATES = 40


def sized(
    scale: float = 1.0,
    *,
    losses: tuple[float, ...] = (2.3, 2.2, 2.4, 2.1),
    gradients: bool = True,
    rows: int = 64,
    passes: int = 1,
    model: dict[str, str] = MLP,
    before: Callable[[TraceBuilder], object] = lambda _: None,
    each: Callable[[TraceBuilder], object] = lambda _: None,
) -> Events:
    """A run whose first losses and gradients are so many times their usual size."""
    trace = TraceBuilder().process().model("Net", model).optimizer().train()
    before(trace)
    for loss in losses:
        trace.begin_step().zero_grad()
        for _ in range(passes):
            trace.batch(size=rows).forward(batch_size=rows)
            each(trace)
            trace.count(backward=1)
            if gradients:
                stats = {"norm": scale * loss / 2, "nonfinite": 0}
                held = TensorSummary("float32", (32, 32), stats=stats)
                trace.add(
                    StateEvent, name="Net.fc1.weight", role="gradient", change="set", summary=held
                )
            value = scale * loss / passes
            given = tensor_json(TensorSummary("float32", (), value=value, requires_grad=True))
            trace.call(Families.BACKWARD, args={"tensors": given}, where="/src/train.py:84")
        trace.optimizer_step()
    return trace.begin_step().build()


def scheduled(
    length: int = UPDATES, *, updates: int = UPDATES, cls: str = "CosineAnnealingLR", **step: Any
) -> Events:
    """A run whose schedule falls to zero within ``length`` calls, one for each update."""
    api = f"torch.optim.lr_scheduler.{cls}"
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.1)
    made = {"T_max": length, "last_epoch": -1}
    trace.call(
        f"{api}.__init__",
        family=Families.SCHEDULER_CREATED,
        owner="opt0",
        args=made,
        where="/src/train.py:20",
    )
    for number in range(updates):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.call(
            f"{api}.step",
            family=Families.SCHEDULER_STEP,
            owner="opt0",
            where="/src/train.py:30",
            args=step,
        )
        trace.end_step()
        trace.optimizers["opt0"].hyper["lr"] = 0.1 * max(0.0, 1 - (number + 1) / length)
    return trace.build()


# quantity -> a healthy run, another healthy run, and a broken one
RUNS: dict[str, tuple[Events, Events, Events]] = {
    LOSS: (sized(), sized(1.4), sized(64)),
    GRADIENT: (sized(), sized(1.4), sized(8)),
    RATE: (scheduled(), scheduled(41), scheduled(4 * UPDATES)),
    LENGTH: (scheduled(), scheduled(41), scheduled(4 * UPDATES)),
}
every = pytest.mark.parametrize("what", QUANTITIES)


def found(what: str, learned_from: Events, run: Events) -> list[Finding]:
    learned = claims(learn(learned_from), "scales", what=what)
    assert learned
    return list(report_of(learned, run).findings)


def limits(*runs: Events) -> dict[str, float]:
    """Of the first loss."""
    each = [one.hypothesis.params for one in claims(learn(*runs), "scales", what=LOSS)]
    return {bound: params[bound] for params in each for bound in {"low", "high"} & params.keys()}


def test_each_quantity_is_tried() -> None:
    assert RUNS.keys() == QUANTITIES.keys()


@every
def test_another_scale_is_told(what: str, golden: Golden) -> None:
    healthy, _, broken = RUNS[what]
    [finding] = found(what, healthy, broken)
    assert golden(finding).severity == QUANTITIES[what].severity


@every
def test_a_healthy_run_is_quiet(what: str) -> None:
    healthy, other, _ = RUNS[what]
    assert not found(what, healthy, healthy)
    assert not found(what, healthy, other)
    assert not found(what, other, healthy)


def test_a_loss_that_is_too_small_is_told() -> None:
    [finding] = found(LOSS, sized(), sized(1 / 8))
    assert mentions(finding, "at least 0.7", "0.2875 in 1 backward pass at train.py:84")


def test_losses_that_are_not_divided_by_the_micro_batches_are_told() -> None:
    [finding] = found(LOSS, sized(passes=4), sized(4, passes=4))
    assert mentions(finding, "4 backward passes", "divided by another count")


def test_several_references_widen_the_band() -> None:
    assert limits(sized()) == {"high": 7.2, "low": 0.7}
    assert limits(sized(), sized(2.0)) == {"high": 14.4, "low": 0.7}


def test_a_loss_that_varies_in_the_run_has_a_wider_band() -> None:
    varying = sized(losses=(2.0, 0.1, 9.0, 1.0))
    assert limits(varying) == {"high": 810.0, "low": 0.00111}
    assert not found(LOSS, varying, sized(10))


def test_episodes_of_another_length_are_quiet() -> None:
    """Policy gradients: a loss is a sum over an episode, whose length varies from 9 to 70."""
    reference = sized(losses=(11.0, 40.0, 16.0, 9.0))
    for losses in ((190.0, 20.0, 8.0, 30.0), (0.9, 12.0, 60.0, 4.0), (140.0, 160.0, 150.0, 131.0)):
        assert not found(LOSS, reference, sized(losses=losses))
        assert not found(GRADIENT, reference, sized(losses=losses))
    [finding] = found(LOSS, reference, sized(64, losses=(11.0, 40.0, 16.0, 9.0)))
    assert mentions(finding, "at most")


@pytest.mark.parametrize(
    "other",
    [
        sized(64, rows=8),
        sized(64, passes=2),
        sized(64, model={**MLP, "fc3.weight": MLP["fc1.weight"]}),
        sized(64, before=lambda t: t.mark("process group", world_size=2)),
        sized(64, before=lambda t: t.add(CheckpointEvent, op="load", target="model", entries=4)),
        sized(64, each=lambda t: t.call(Families.SCALE)),
        sized(64, losses=(2.3, 2.2, 2.4)),
        sized(-1),
    ],
    ids=["rows", "passes", "parameters", "ranks", "loaded", "scaled", "short", "negative"],
)
def test_runs_of_another_size_are_not_compared(other: Events) -> None:
    """Nor do they take away what another run shows."""
    learned = claims(learn(sized()), "scales")
    assert not report_of(learned, other).findings
    assert Verdict.HELD not in report_of(learned, other).verdicts.values()
    both = claims(learn(sized(), other), "scales")
    assert {each.id for each in learned} <= {each.id for each in both}


@pytest.mark.parametrize(
    "other",
    [
        scheduled(4 * UPDATES, updates=UPDATES // 2),
        scheduled(4 * UPDATES, cls="ReduceLROnPlateau"),
        scheduled(4 * UPDATES, metrics=0.5),
    ],
    ids=["ends early", "plateau", "metric"],
)
def test_schedules_that_may_end_elsewhere_are_not_compared(other: Events) -> None:
    learned = claims(learn(scheduled()), "scales", what=RATE)
    learned += claims(learn(scheduled()), "scales", what=LENGTH)
    assert len(learned) == 3
    assert not report_of(learned, other).findings


def test_a_length_that_is_not_the_number_of_updates_is_a_setting() -> None:
    assert not claims(learn(scheduled(3 * UPDATES)), "scales", what=LENGTH)


def test_unknown_claims_are_refused() -> None:
    for params in ({"what": "color", "high": 1.0}, {"what": LOSS}, {}):
        with pytest.raises(ValueError, match="nothing is known of"):
            decide("scales", params, [])


# -- a real program


def trained(folder: Path, seed: int, *, reduction: str = "mean", ahead: int = 1) -> Events:
    torch.manual_seed(seed)
    x, y = torch.randn(240, 6), torch.randint(0, 3, (240,))
    with recording(folder) as run:
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 * ahead)
        for rows, labels in zip(x.split(20), y.split(20)):
            optimizer.zero_grad()
            F.cross_entropy(net(rows), labels, reduction=reduction).backward()
            optimizer.step()
            schedule.step()
    return run.events


def test_a_real_program(tmp_path: Path) -> None:
    learned = claims(learn(trained(tmp_path / "a", 1)), "scales")
    assert {each.hypothesis.params["what"] for each in learned} == set(QUANTITIES)
    assert not report_of(learned, trained(tmp_path / "b", 2)).findings
    by_id = {each.id: each.hypothesis.params["what"] for each in learned}

    def told(**bug: Any) -> set[str]:
        folder = tmp_path / "-".join(map(str, bug))
        return {by_id[one.check] for one in report_of(learned, trained(folder, 2, **bug)).findings}

    assert told(reduction="sum") == {LOSS}  # gradients follow, which is no other cause
    assert told(ahead=4) == {RATE, LENGTH}
