"""schedule: the shape of the curve that learning rates of a program follow."""

from __future__ import annotations

import math

import pytest

from tests.builders import MLP, OTHER_SCRIPT, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.torch_api import Families


def run(rates, scheduler: str | None = "LambdaLR", **process) -> TraceBuilder:
    """A step with each of these rates, set by a scheduler between them."""
    trace = TraceBuilder().process(**process).model("Net", MLP).optimizer().train()
    for number, rate in enumerate(rates):
        trace.optimizers["opt0"].hyper["lr"] = rate
        if number and scheduler:
            api = f"torch.optim.lr_scheduler.{scheduler}.step"
            trace.call(api, family=Families.SCHEDULER_STEP, owner="opt0", where="train.py:90")
        trace.step().end_step()
    return trace


def cosine(steps: int, length: int = 24, top: float = 0.1) -> list[float]:
    return [top * (1 + math.cos(math.pi * t / length)) / 2 for t in range(steps)]


def linear(steps: int, length: int = 24, top: float = 0.1) -> list[float]:
    return [top * max(0.0, 1 - t / length) for t in range(steps)]


def warm(steps: int, top: float = 0.1) -> list[float]:
    return [top * (min(1.0, (t + 1) / 5) if t < 5 else 1 - (t - 4) / 40) for t in range(steps)]


@pytest.mark.parametrize(
    ("rates", "scheduler", "expected"),
    [
        (cosine(20), "CosineAnnealingLR", ["cosine", "moves"]),
        (linear(20), "LinearLR", ["falls", "linear", "moves"]),
        ([0.9**t for t in range(20)], "ExponentialLR", ["exponential", "falls", "moves"]),
        ([0.5 ** (t // 5) for t in range(20)], "StepLR", ["falls"]),
        (warm(20), "LambdaLR", ["moves", "warm-up"]),
        (warm(5), "LambdaLR", []),  # what follows a warm-up is not known
        ([0.1] * 20, None, ["constant"]),
        ([0.1] * 20, "StepLR", []),  # its step may be still to come
        ([0.1, 0.05] * 10, "CyclicLR", ["moves"]),
    ],
    ids=range(9),
)
def test_the_closest_shape_is_learned(rates, scheduler, expected, golden: Golden):
    found = golden.each(claims(learn(run(rates, scheduler).build()), "schedule"))
    assert sorted(values_of(found, "schedule", "shape")) == expected


def shape(name: str) -> dict[str, str]:
    return {"program": "train.py", "shape": name}


OF = {"linear": "LinearLR", "exponential": "ExponentialLR", "falls": "StepLR"}


def wrong(name: str, rates, scheduler: str | None = None):
    scheduler = scheduler or OF.get(name, "CosineAnnealingLR")
    return [
        step for step, *_ in broken(decide("schedule", shape(name), run(rates, scheduler).build()))
    ]


@pytest.mark.parametrize("steps", [3, 12, 24, 60])
def test_other_numbers_of_steps_and_other_rates_make_no_difference(steps):
    curves = {"cosine": cosine, "linear": linear, "warm-up": warm, "moves": linear}
    for name, curve in curves.items():
        assert wrong(name, curve(min(steps, 40) if curve is warm else steps, top=3.0)) == []
    assert wrong("cosine", cosine(steps, length=7)) == []
    assert wrong("exponential", [0.7**t for t in range(steps)]) == []


def test_a_scheduler_that_is_stepped_twice_leaves_the_curve(golden: Golden):
    rates = cosine(24)
    del rates[8]
    assert wrong("cosine", rates)[0] == 8
    (example, *_) = [
        e
        for e in decide("schedule", shape("cosine"), run(rates, "CosineAnnealingLR").build())
        if not e.holds
    ]
    assert example.symptom is Symptom.SCHEDULE
    golden(example)
    assert mentions(example, "Net.fc1.weight")
    rates = linear(24)
    del rates[8]
    assert wrong("linear", rates) == [8, 9]


def test_a_schedule_that_begins_anew_rises():
    assert wrong("falls", [*linear(6), *linear(6)]) == [6]
    assert wrong("warm-up", [*warm(10), *warm(3)]) == [11, 12]  # the first is below where it was
    assert wrong("warm-up", warm(10)) == []


def test_another_scheduler_has_another_curve():
    """The user's choice: a warm-up before it, restarts, one that is stepped by batch."""
    assert wrong("cosine", linear(9), "LinearLR") == []
    assert wrong("falls", warm(9), "SequentialLR") == []
    assert wrong("warm-up", [*linear(6), *linear(6)], "CosineAnnealingWarmRestarts") == []
    assert wrong("falls", [*linear(6), *linear(6)], "MultiStepLR") == [6]


def test_a_scheduler_that_is_never_stepped_leaves_the_rate_still():
    assert wrong("moves", [0.1] * 10) == [1]
    assert wrong("moves", [*linear(5), linear(5)[-1], *linear(9)[5:]]) == [5]
    assert wrong("moves", [*linear(5), *[linear(5)[-1]] * 5]) == []  # it may have ended


def test_a_rate_that_changes_where_none_did_is_advice():
    reference = learn(run([0.1] * 12, None).build())
    constant = [i for i in reference.invariants if i.hypothesis.relation == "schedule"]
    assert report_of(constant, run([0.7] * 5, None).build()).findings == []
    assert report_of(constant, run([0.1, 0.1, 0.05], "StepLR").build()).findings == []
    (finding,) = report_of(constant, run([0.1, 0.1, 0.2], None).build()).findings
    assert (finding.step, finding.severity) == (2, "info")


def test_steps_that_a_scaler_skips_do_not_make_a_rate_still():
    trace = run(linear(4), "LinearLR")
    trace.begin_step().zero_grad().forward().backward()
    trace.counters["scaler_step"] = 1
    trace.end_step()
    for rate in linear(9)[4:]:
        trace.optimizers["opt0"].hyper["lr"] = rate
        trace.step().end_step()
    assert broken(decide("schedule", shape("moves"), trace.build())) == []
    assert broken(decide("schedule", shape("linear"), trace.build())) == []


def test_it_says_nothing_of_another_program():
    reference = learn(run(cosine(20), "CosineAnnealingLR").build())
    mine = [i for i in reference.invariants if i.hypothesis.relation == "schedule"]
    other = run([0.1, 0.2, 0.1, 0.5] * 3, "LambdaLR", **OTHER_SCRIPT)
    assert set(report_of(mine, other.build()).verdicts.values()) == {Verdict.NOT_TRIGGERED}


def test_parameters_that_no_version_wrote_are_refused():
    with pytest.raises(ValueError, match="nothing is known"):
        decide("schedule", shape("sawtooth"), [])


def by_epoch(
    epochs: int,
    batches: int,
    *,
    every: str | None = "epoch",
    rate: float = 0.1,
    name: str = "StepLR",
    loader: str = "loader0",
) -> list:
    """A scheduler that is stepped after each epoch, or after each batch, or never; None: none."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    if every is not None:
        api = f"torch.optim.lr_scheduler.{name}.__init__"
        trace.call(api, family=Families.SCHEDULER_CREATED, owner="opt0")
    trace.train()
    for epoch in range(epochs):
        for index in range(batches):
            trace.optimizers["opt0"].hyper["lr"] = rate / (epoch + 1)
            place = (loader, epoch) if loader else (f"loader{epoch}", 0)  # created again each time
            trace.begin_step().batch(place[0], index=index, epoch=place[1])
            trace.zero_grad().forward().backward().optimizer_step()
            if every == "batch" or (every == "epoch" and index == batches - 1):
                api = f"torch.optim.lr_scheduler.{name}.step"
                trace.call(api, family=Families.SCHEDULER_STEP, owner="opt0")
            trace.end_step()
    return trace.build()


def test_a_scheduler_that_is_stepped_once_an_epoch():
    held = claims(learn(by_epoch(4, 6)), "schedule", shape="by epoch")
    assert len(held) == 1
    by_batch = by_epoch(3, 6, every="batch", name="OneCycleLR")
    for healthy in (
        *(by_epoch(6, 3), by_epoch(2, 20), by_epoch(1, 8, every="never"), by_batch),
        by_epoch(6, 3, loader=""),
    ):
        assert report_of(held, healthy).findings == []
    without = report_of(held, by_epoch(6, 3, every=None))
    assert set(without.verdicts.values()) == {Verdict.NOT_TRIGGERED}, "it trains at one rate"
    assert report_of(held, by_epoch(3, 6, every="never")).findings[0].first_step == 6
    assert report_of(held, by_epoch(3, 6, every="batch")).findings[0].first_step == 1
    for other in (by_epoch(12, 1, every="batch"), by_epoch(4, 6, every="batch")):
        assert not claims(learn(other), "schedule", shape="by epoch")


def test_batches_of_an_evaluation_begin_no_epoch():
    """The loop itself draws its samples without a loader."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    trace.call("torch.optim.lr_scheduler.StepLR.__init__", family=Families.SCHEDULER_CREATED)
    for epoch in range(4):
        trace.train()
        for _ in range(6):
            trace.step(omit={"batch"})
        trace.call("torch.optim.lr_scheduler.StepLR.step", family=Families.SCHEDULER_STEP)
        trace.train(False).set_stage("eval")
        trace.batch("loader1", index=3, epoch=epoch).set_stage("train")
    held = claims(learn(by_epoch(4, 6)), "schedule", shape="by epoch")
    assert report_of(held, trace.build()).findings == []


def still(learned: TraceBuilder, checked: TraceBuilder) -> list[str]:
    held = claims(learn(learned.build()), "schedule", shape="moves")
    assert held
    return [finding.code for finding in report_of(held, checked.build()).findings]


def test_rates_need_not_move_under_another_scheduler_or_none():
    by_step = run(linear(20), "LinearLR")
    by_epoch = [0.1] * 8 + [0.05] * 8
    assert still(by_step, run([0.1] * 12, "LinearLR")) == ["schedule"]
    assert still(by_step, run(by_epoch, "LinearLR")) == ["schedule"]
    assert still(by_step, run(by_epoch, "StepLR")) == []
    assert still(by_step, run([0.1] * 12, None)) == []
    anything = run(linear(20))
    assert still(anything, run([0.1] * 12)) == []  # constant


def test_a_group_that_stays_behind_the_others_is_told():
    def groups(*curves: list[float]) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", MLP).optimizer().train()
        for _ in curves[0]:
            trace.step().end_step()
        rates = iter(zip(*curves))
        trace.events = [
            e.replace(lr={"opt0": [*next(rates)]}) if isinstance(e, StepEvent) else e
            for e in trace.events
        ]
        return trace

    moving = linear(20)
    assert still(groups(moving, moving), groups(moving, [0.1] * 20)) == ["schedule"]
    assert still(groups(moving, moving), groups([0.1] * 20, [0.1] * 20)) == []
