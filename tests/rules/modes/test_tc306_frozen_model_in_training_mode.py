"""TC306: models that serve the training of another, in training mode."""

from __future__ import annotations

from typing import Any

from tests.builders import MLP
from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.window import dropout, forward, norm
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def loop(
    *inner: dict[str, Any],
    mode: bool = True,
    moves_at: int = 99,
    passes: int = 1,
    grad: bool = False,
    steps: int = 10,
) -> list[Event]:
    """A student that is trained with the answers of a teacher; the teacher's weights may move."""
    trace = net().model("Teacher", MLP, frozen={f"Teacher.{path}" for path in MLP})
    for step in range(steps):
        trace.begin_step()
        if mode and not grad:
            trace.mark("untrained", model="Teacher", weights="a" if step < moves_at else "b")
        for _ in range(passes):
            forward(trace, *inner, mode=mode, grad=grad, module="Teacher")
        forward(trace.zero_grad()).backward().optimizer_step()
    return trace.build()


DROPS = dropout("Teacher.drop", on=True)
BROKEN = loop(DROPS)


def test_fires_on_a_teacher_that_drops_units() -> None:
    finding = fires("TC306", BROKEN)
    assert finding.subject.module == "Teacher"
    assert finding.first_step == 0
    assert mentions(finding, "Teacher.drop")


def test_fires_on_a_teacher_that_normalizes_by_the_batch() -> None:
    assert mentions(fires("TC306", loop(norm("Teacher.bn", on=True))), "Teacher.bn")


def test_quiet_in_evaluation_mode() -> None:
    off = [dropout("Teacher.drop", on=False), norm("Teacher.bn", on=False)]
    assert quiet("TC306", loop(*off, mode=False)) is Verdict.NOT_TRIGGERED
    assert quiet("TC306", loop(*off)) is Verdict.HELD  # parts that were frozen one by one


def test_quiet_on_weights_that_move() -> None:
    for step in (1, 5):
        assert quiet("TC306", loop(DROPS, moves_at=step, steps=30)) is Verdict.HELD


def test_quiet_on_monte_carlo_dropout_and_with_gradients() -> None:
    assert quiet("TC306", loop(DROPS, passes=4)) is Verdict.HELD
    assert quiet("TC306", loop(DROPS, grad=True)) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_few_steps() -> None:
    assert quiet("TC306", loop(DROPS, steps=7)) is Verdict.HELD
