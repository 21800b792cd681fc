"""What other healthy programs do breaks nothing that was learned from a plain loop."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, MLP, SGD, TraceBuilder
from tests.learning import broken, decide, learn, report_of
from traincheck.relations._changes import PATIENCE
from traincheck.schema.apis import Families
from traincheck.schema.findings import Symptom

F = Families
ZERO_BETWEEN = {"after": F.OPTIMIZER_STEP, "needs": F.ZERO_GRAD, "before": F.OPTIMIZER_STEP}
UPDATES = {"outer": F.OPTIMIZER_STEP, "role": "parameter", "change": "changes"}
IN_STEP = {"outer": "step", "role": "parameter", "change": "changes"}
MODE = {"outer": "step", "inner": F.MODULE, "args": {"training": True}}
REACHED = {"outer": "step", "role": "gradient", "change": "changes", "within": PATIENCE}
STEPS = {"outer": "step", "inner": F.OPTIMIZER_STEP, "within": PATIENCE}


def plain(program: str = "train.py", model=MLP, **options) -> TraceBuilder:
    trace = TraceBuilder().process(argv0=program).model("Net", model, **options)
    return trace.optimizer().train()


def wrapped() -> TraceBuilder:
    """An optimizer whose step calls that of another one, which holds the same parameters."""
    return plain("wrapped.py").optimizer(cls=SGD)


def wrapped_step(trace: TraceBuilder, *, clears: bool = True) -> TraceBuilder:
    trace.begin_step()
    if clears:
        trace.zero_grad("opt0")
    trace.forward().backward()
    begun = trace._now_ns
    trace.optimizer_step("opt1")
    return trace.call(
        "__main__.Flat.step", family=F.OPTIMIZER_STEP, owner="opt0", start_ns=begun
    ).end_step()


def test_an_optimizer_in_an_optimizer_is_one():
    trace = wrapped()
    for _ in range(4):
        wrapped_step(trace)
    events = trace.build()
    found = decide("order", ZERO_BETWEEN, events)
    assert [example.holds for example in found] == [True] * 3
    changes = decide("contains", UPDATES, events)
    assert {example.holds for example in changes} == {True}
    assert len(changes) == 4 * 2 * len(MLP)


def test_a_wrapped_optimizer_without_zero_grad_is_still_found():
    trace = wrapped()
    for index in range(4):
        wrapped_step(trace, clears=index == 0)
    found = broken(decide("order", ZERO_BETWEEN, trace.build()))
    assert [step for step, *_ in found] == [1, 2, 3]


def test_an_outer_update_that_changes_nothing_is_still_found():
    trace = wrapped_step(wrapped())
    trace.begin_step().zero_grad("opt0").forward().backward()
    trace.call("__main__.Flat.step", family=F.OPTIMIZER_STEP, owner="opt0").end_step()
    assert len(broken(decide("contains", UPDATES, trace.build()))) == len(MLP)


def adversarial(trace: TraceBuilder) -> TraceBuilder:
    """A look at gradients in evaluation mode, which nothing applies; then a step of training."""
    trace.begin_step().train(False).zero_grad().forward().backward().end_step()
    return trace.train().begin_step().zero_grad().forward().backward().optimizer_step().end_step()


def test_the_mode_counts_where_gradients_are_applied():
    trace = plain()
    for _ in range(3):
        adversarial(trace)
    found = decide("contains", MODE, trace.build())
    assert [example.holds for example in found] == [True] * 3
    stuck = plain().train(False).steps(3).build()
    assert [symptom for _, symptom, _ in broken(decide("contains", MODE, stuck))] == [
        Symptom.EVAL_MODE
    ] * 3


def test_a_step_without_an_optimizer_is_told_apart():
    trace = plain()
    for _ in range(3):
        adversarial(trace)
    found = decide("contains", IN_STEP, trace.build())
    assert {example.context["has_step"] for example in found if not example.holds} == {False}
    assert {example.context["has_step"] for example in found if example.holds} == {True}
    stays = plain().steps(2, not_updated={"Net.fc1.weight"}).build()
    lacking = [example for example in decide("contains", IN_STEP, stays) if not example.holds]
    assert {example.context["has_step"] for example in lacking} == {True}


@pytest.mark.parametrize(("searches", "expected"), [(PATIENCE - 1, []), (PATIENCE, [1])])
def test_optimizers_step_now_and_then(searches, expected):
    trace = plain().steps(1)
    for _ in range(searches):
        trace.begin_step().zero_grad().forward().backward().end_step()
    trace.steps(1)
    assert [step for step, *_ in broken(decide("contains", STEPS, trace.build()))] == expected


def test_a_first_gradient_may_be_late_and_later_ones_may_fail():
    late = {"Net.fc2.weight"}
    routed = plain().steps(PATIENCE - 1, no_gradient=late).steps(1).steps(12, no_gradient=late)
    assert broken(decide("contains", REACHED, routed.build())) == []
    cut = plain().steps(PATIENCE + 4, no_gradient=late)
    assert broken(decide("contains", REACHED, cut.build())) == [
        (0, Symptom.NO_GRADIENT, "Net.fc2.weight")
    ]


def test_one_dim_is_no_batch():
    claim = {"api": f"{LINEAR}.forward", "left": "result", "right": "0", "equal": ["shape[0]"]}

    def call(given, made):
        tensors = [{"shape": s, "dtype": "float32", "device": "cpu"} for s in (given, made)]
        trace = plain().call(
            f"{LINEAR}.forward", family=F.MODULE, args={"0": tensors[0]}, result=tensors[1]
        )
        return [example.holds for example in decide("input_output", claim, trace.build())]

    assert call([4, 8], [4, 2]) == [True]
    assert call([4, 8], [3, 2]) == [False]
    assert call([8], [2]) == []


def test_of_one_plain_program_nothing_of_it_is_asked_of_others():
    learned = learn(plain().steps(20).build()).invariants
    others = [plain("search.py"), wrapped(), plain("frozen.py", frozen={"Net.fc1.weight"})]
    for _ in range(9):
        adversarial(others[0])
        wrapped_step(others[1])
    others[2].train(False).steps(9, not_updated={"Net.fc1.weight"}, no_gradient={"Net.fc1.weight"})
    for other in others:
        assert [f.message for f in report_of(learned, other.build()).findings] == []
    stale = plain("stale.py").replace("Net.fc1.weight").steps(3)
    assert report_of(learned, stale.build()).findings
