"""What every rule promises: tests found by name, one answer live and from disk, and silence on
every healthy run. Traces are made by hand; tests/rules/test_every_rule.py holds the rest."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable

import pytest

from tests.builders import ADAM, BN_BUFFERS, MLP, MLP_BN, SGD, TraceBuilder
from tests.checking import report_of
from tests.rules.broken import BROKEN, TESTS
from tests.together import together
from traincheck.rules.table import RULES
from traincheck.schema.codec import decode, encode
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.protocols import Rule
from traincheck.schema.torch_api import Families

every_rule = together("rule", RULES, ids=lambda rule: rule.info.code)


@every_rule
@pytest.mark.parametrize("kind", ["fires", "quiet"])
def test_it_has_tests_of_both_kinds_found_by_name(rule: Rule, kind: str) -> None:
    text = TESTS[rule.info.code].read_text(encoding="utf-8")
    assert re.search(rf"^def test_(\w+_)?{kind}(_\w+)?\(", text, re.M)
    assert re.search(rf"\b{kind}\(", text.replace(f"_{kind}(", ""))


@every_rule
def test_from_disk_it_says_what_it_says_live(rule: Rule) -> None:
    live = report_of(BROKEN[rule.info.code], [rule])
    lines = [(encode(event), event) for event in BROKEN[rule.info.code]]
    replayed = report_of([decode(line, e.rank, e.stream) for line, e in lines], [rule])
    assert [(f.first_step, f.message, f.variables) for f in replayed.findings] == [
        (f.first_step, f.message, f.variables) for f in live.findings
    ]
    assert replayed.verdicts == live.verdicts


def net(**options: object) -> TraceBuilder:
    events = TraceBuilder().process().seed().model("Net", MLP)
    return events.optimizer(**options).train()  # type: ignore[arg-type]


def plain() -> list[Event]:
    return net().steps(6).build()


def evaluated() -> list[Event]:
    return net().steps(6, eval_every=2).build()


def evaluated_first() -> list[Event]:
    return net().evaluate(2).steps(4).build()


def scheduled() -> list[Event]:
    return net(cls=SGD).steps(6, scheduler=True, style="B").build()


def warm_up_from_zero() -> list[Event]:
    events = net(lr=0.0).step(not_updated=[f"Net.{name}" for name in MLP])
    return events.change_groups(lr=1e-3).steps(4).build()


def accumulated() -> list[Event]:
    return net().steps(3, accumulate=4).step(accumulate=2).build()


def normalized() -> list[Event]:
    events = TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer().train()
    return events.steps(5, eval_every=3).build()


def gradients_kept_as_zeros() -> list[Event]:
    return net().steps(5, set_to_none=False, style="B").build()


def fine_tuned() -> list[Event]:
    body = ["Net.fc1.weight", "Net.fc1.bias"]
    events = TraceBuilder().process().model("Net", MLP, frozen=body)
    return events.optimizer(names=["Net.fc2.weight", "Net.fc2.bias"]).train().steps(5).build()


def two_optimizers() -> list[Event]:
    names = [f"Net.{name}" for name in MLP]
    events = TraceBuilder().process().model("Net", MLP)
    return events.optimizer(names=names[:2]).optimizer(SGD, names[2:]).train().steps(5).build()


def adversaries() -> list[Event]:
    """The backward of a generator's loss reaches the discriminator, whose step clears it first."""
    events = TraceBuilder().process().model("Critic", MLP).model("Maker", MLP)
    critic, maker = ([f"{owner}.{name}" for name in MLP] for owner in ("Critic", "Maker"))
    events.optimizer(names=critic).optimizer(names=maker).train()
    for _ in range(5):
        events.begin_step().batch()
        events.zero_grad("opt0").forward("Critic").backward(only=critic).optimizer_step("opt0")
        events.zero_grad("opt1").forward("Maker").forward("Critic").backward()
        events.optimizer_step("opt1")
    return events.build()


def scaled() -> list[Event]:
    """The gradient scaler skips the third step."""
    events = net()
    for step in range(6):
        events.begin_step().batch().zero_grad().forward().backward()
        if step != 2:
            events.optimizer_step()
        events.call(Families.SCALER_STEP, family=Families.SCALER_STEP, owner="opt0")
        events.call(Families.SCALER_UPDATE, family=Families.SCALER_UPDATE)
    return events.build()


def sampled() -> list[Event]:
    return net().steps(2).skipped_steps(4).step().skipped_steps(4).steps(2).build()


def stopped_in_a_step() -> list[Event]:
    return net().steps(3).begin_step().batch().zero_grad().forward().build(last_complete=False)


def evaluated_only() -> list[Event]:
    return TraceBuilder().process().model("Net", MLP).evaluate(3, back_to_train=False).build()


def without_a_loader() -> list[Event]:
    return net().steps(5, omit={"batch"}).build()


def two_ranks() -> list[Event]:
    """Nothing else is known of them than that both train, on data of their own."""
    ranks = [
        TraceBuilder(rank=rank).process().model("Net", MLP).optimizer(ADAM).train().steps(4).build()
        for rank in range(2)
    ]
    return list(heapq.merge(*ranks, key=lambda event: (event.step or 0, event.seq)))


HEALTHY: tuple[Callable[[], list[Event]], ...] = (
    plain,
    evaluated,
    evaluated_first,
    scheduled,
    warm_up_from_zero,
    accumulated,
    normalized,
    gradients_kept_as_zeros,
    fine_tuned,
    two_optimizers,
    adversaries,
    scaled,
    sampled,
    stopped_in_a_step,
    evaluated_only,
    without_a_loader,
    two_ranks,
)

every_healthy_run = pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__)


@every_healthy_run
def test_all_of_them_are_silent(make: Callable[[], list[Event]]) -> None:
    report = report_of(make())
    assert [(f.code, f.message) for f in report.findings] == []


def test_silence_does_not_come_from_looking_at_nothing() -> None:
    held = {
        code
        for make in HEALTHY
        for code, verdict in report_of(make()).verdicts.items()
        if verdict is Verdict.HELD
    }
    assert {"TC101", "TC102", "TC201", "TC202", "TC203", "TC301"} <= held


@every_healthy_run
def test_all_of_them_are_silent_when_such_a_run_breaks_off(
    make: Callable[[], list[Event]],
) -> None:
    events = make()
    for length in range(1, len(events), max(1, len(events) // 6)):
        assert report_of(events[:length]).findings == []
