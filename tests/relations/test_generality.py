"""What other healthy programs do breaks nothing that was learned from a plain loop."""

from __future__ import annotations

import pytest

from tests.builders import BN_BUFFERS, LINEAR, MLP, MLP_BN, OTHER_SCRIPT, SGD, TraceBuilder
from tests.learning import broken, decide, learn, report_of
from traincheck.readings.distributed.rank_steps import FIRST, LATER, LATER_AT_END, STUCK
from traincheck.relations.contains.change_claims import PATIENCE
from traincheck.schema.events import CallEvent, StateEvent
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families

F = Families
ZERO_BETWEEN = {"after": F.OPTIMIZER_STEP, "needs": F.ZERO_GRAD, "before": F.OPTIMIZER_STEP}
UPDATES = {"outer": F.OPTIMIZER_STEP, "role": "parameter", "change": "changes"}
IN_STEP = {"outer": "step", "role": "parameter", "change": "changes"}
MODE = {"outer": "step", "inner": F.MODULE, "args": {"training": True}}
REACHED = {"outer": "step", "role": "gradient", "change": "changes", "within": PATIENCE}
HELD = {"is": "reached"}
ZERO_BEFORE = {"after": F.OPTIMIZER_STEP, "needs": F.ZERO_GRAD, "before": F.BACKWARD}
STEP_BETWEEN = {
    "after": F.SCHEDULER_STEP,
    "needs": F.OPTIMIZER_STEP,
    "before": F.SCHEDULER_STEP,
}
STEPS = {"outer": "step", "inner": F.OPTIMIZER_STEP, "within": PATIENCE}


def plain(program: str = "train.py", model=MLP, **options) -> TraceBuilder:
    script = {} if program == "train.py" else {**OTHER_SCRIPT, "argv0": program}
    trace = TraceBuilder().process(**script).model("Net", model, **options)
    return trace.optimizer().train()


def wrapped() -> TraceBuilder:
    """An optimizer whose step calls that of another one, which holds the same parameters."""
    return plain("wrapped.py").optimizer(cls=SGD)


def wrapped_step(trace: TraceBuilder, *, clears: bool = True) -> TraceBuilder:
    trace.begin_step()
    if clears:
        trace.zero_grad("opt0")
    trace.forward().backward()
    begun = trace.now_ns
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
    for _ in range(STUCK):
        trace.begin_step().zero_grad("opt0").forward().backward()
        trace.call("__main__.Flat.step", family=F.OPTIMIZER_STEP, owner="opt0").end_step()
    found = broken(decide("contains", UPDATES, trace.build()))
    assert {name for *_, name in found} == {f"Net.{name}" for name in MLP}


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
    stuck = plain(model=MLP_BN, buffers=BN_BUFFERS).steps(1).train(False).steps(3).build()
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


@pytest.mark.parametrize(
    ("before", "searches", "after", "expected"),
    [
        (0, FIRST - 1, 1, []),  # several tasks
        (0, FIRST, 0, [0]),
        (1, LATER_AT_END - 1, 0, []),  # a saliency map after training
        (1, LATER_AT_END, 0, [1]),
        (1, LATER - 1, 1, []),
        (1, LATER, 1, [1]),
    ],
)
def test_optimizers_step_now_and_then(before, searches, after, expected):
    trace = plain().steps(before).steps(searches, omit={"optimizer_step"}).steps(after)
    assert [step for step, *_ in broken(decide("contains", STEPS, trace.build()))] == expected


def test_gradients_that_another_line_computes_await_no_step():
    """Of Fisher information, after training."""
    trace = plain().steps(2).steps(60, omit={"optimizer_step"}).build()
    moved = [
        event.replace(where="fisher.py:3")
        if isinstance(event, CallEvent) and event.api == F.BACKWARD and (event.step or 0) > 1
        else event
        for event in trace
    ]
    assert len(broken(decide("contains", STEPS, trace))) == 1
    assert broken(decide("contains", STEPS, moved)) == []


def test_no_optimizer_need_step_where_none_is():
    """The program updates the weights itself."""
    trace = TraceBuilder().process().model("Net", MLP)
    for _ in range(40):
        trace.begin_step().forward().backward().end_step()
    assert broken(decide("contains", STEPS, trace.build())) == []


def test_no_optimizer_need_step_for_what_is_updated_by_hand():
    """Langevin dynamics: the optimizer is there to clear gradients."""
    names = [f"Net.{name}" for name in MLP]
    for moving in (names, []):
        trace = plain()
        for _ in range(40):
            trace.begin_step().zero_grad().forward().backward().write(*moving).end_step()
        found = broken(decide("contains", STEPS, trace.build()))
        assert [step for step, *_ in found] == ([] if moving else [0, 0, 0, 0])


def by_hand(steps: int, *, moves: bool = True) -> TraceBuilder:
    """A head that no optimizer holds, which the program updates after each step."""
    head = ["Net.fc2.weight", "Net.fc2.bias"]
    trace = TraceBuilder().process().model("Net", MLP)
    trace.optimizer(names=["Net.fc1.weight", "Net.fc1.bias"]).train()
    for _ in range(steps):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.end_step()
        if moves:
            trace.begin_step().write(*head)
    return trace


@pytest.mark.parametrize(("relation", "params"), [("contains", IN_STEP), ("membership", HELD)])
def test_a_part_that_is_updated_by_hand_needs_no_optimizer(relation, params):
    assert broken(decide(relation, params, by_hand(6).build())) == []
    kept = broken(decide(relation, params, by_hand(6, moves=False).build()))
    assert {(symptom, name) for _, symptom, name in kept} == {
        (Symptom.NOT_IN_OPTIMIZER, "Net.fc2.weight"),
        (Symptom.NOT_IN_OPTIMIZER, "Net.fc2.bias"),
    }
    assert {step for step, *_ in kept} == set(range(6))


def test_a_gradient_of_zeros_need_not_be_applied():
    """Of a part behind a gate that is closed."""
    trace = by_hand(4, moves=False).build()
    closed = [
        event.replace(summary=event.summary.replace(zero=True))
        if isinstance(event, StateEvent) and event.role == "gradient" and event.summary
        else event
        for event in trace
    ]
    assert broken(decide("membership", HELD, trace))
    assert broken(decide("membership", HELD, closed)) == []


def test_the_step_of_another_optimizer_is_told_apart():
    """Two halves of a model that are trained alternately, ten steps each."""
    names = [f"Net.{name}" for name in MLP]
    trace = TraceBuilder().process().model("Net", MLP)
    trace.optimizer(names=names[:2]).optimizer(names=names[2:]).train()
    for _ in range(4):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        trace.optimizer_step("opt0").end_step()
    found = decide("contains", IN_STEP, trace.build())
    lacking = {e.subject.variable: e.context["has_step"] for e in found if not e.holds}
    assert lacking == dict.fromkeys(names[2:], False)
    assert {e.context["has_step"] for e in found if e.holds} == {True}


def test_the_gradients_of_an_optimizer_that_waits_need_not_be_cleared():
    """The generator's loss reaches the critic, whose turn comes later."""
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    for model in "GD":
        trace.optimizer(names=[f"{model}.{name}" for name in MLP])
    for _ in range(4):
        trace.begin_step().zero_grad("opt0").forward().backward().optimizer_step("opt0").end_step()
    claim = {"outer": "step", "role": "gradient", "change": "cleared"}
    assert broken(decide("contains", claim, trace.build())) == []
    for _ in range(2):
        trace.begin_step().zero_grad("opt0").forward().backward()
        trace.optimizer_step("opt0").optimizer_step("opt1").end_step()
    found = broken(decide("contains", claim, trace.build()))
    assert {name for *_, name in found} == {f"D.{name}" for name in MLP}


@pytest.mark.parametrize("is_called", [True, False])
def test_a_model_that_is_not_called_yet_gets_no_gradient(is_called):
    """One optimizer holds what is trained now, and what is trained later."""
    trace = TraceBuilder().process().model("Net", MLP).model("Later", MLP).optimizer().train()
    later = {f"Later.{name}" for name in MLP}
    for _ in range(PATIENCE + 4):
        trace.begin_step().zero_grad().forward(None if is_called else "Net")
        trace.backward(skip=later).optimizer_step().end_step()
    found = broken(decide("contains", REACHED, trace.build()))
    assert {name for *_, name in found} == (later if is_called else set())


@pytest.mark.parametrize("is_graphed", [True, False])
def test_layers_may_wait_without_a_graph_for_the_head(is_graphed):
    """Linear probing, then fine-tuning, with one optimizer."""
    body = {"Net.fc1.weight", "Net.fc1.bias"}
    trace = plain()
    for _ in range(PATIENCE + 4):
        trace.begin_step().zero_grad()
        trace.call(f"{LINEAR}.forward", module="Net.fc1", family=F.MODULE, grad_enabled=is_graphed)
        trace.call("__main__.Net.forward", module="Net", family=F.MODULE, root=True)
        trace.backward(skip=body).optimizer_step().end_step()
    found = broken(decide("contains", REACHED, trace.build()))
    assert {name for *_, name in found} == (body if is_graphed else set())


def cleared_by_hand(*, clears: bool) -> TraceBuilder:
    """p.grad = None in place of zero_grad()."""
    trace = plain()
    for _ in range(6):
        trace.begin_step().batch().forward()
        for variable in trace.parameters().values() if clears else ():
            if variable.has_grad:
                variable.has_grad = False
                trace.state(variable, "gradient", "cleared")
        trace.backward().optimizer_step().end_step()
    return trace


@pytest.mark.parametrize(
    ("relation", "params"),
    [
        ("contains", {"outer": "step", "inner": F.ZERO_GRAD}),
        ("order", ZERO_BEFORE),
        ("order", ZERO_BETWEEN),
    ],
)
def test_gradients_that_are_cleared_by_hand_need_no_zero_grad(relation, params):
    assert broken(decide(relation, params, cleared_by_hand(clears=True).build())) == []
    found = broken(decide(relation, params, cleared_by_hand(clears=False).build()))
    assert [step for step, *_ in found] == [1, 2, 3, 4, 5]


def scheduled(*apis: str, early: int = 0) -> TraceBuilder:
    trace = plain()
    for _ in range(early):
        trace.scheduler_step()
    for _ in range(4):
        trace.begin_step().zero_grad().forward().backward().optimizer_step()
        for api in apis:
            trace.call(
                f"torch.optim.lr_scheduler.{api}.step", family=F.SCHEDULER_STEP, owner="opt0"
            )
        trace.end_step()
    return trace


def test_schedulers_of_one_optimizer_are_kept_apart():
    for trace in (scheduled("ExponentialLR", "StepLR"), scheduled("StepLR", early=3)):
        assert broken(decide("order", STEP_BETWEEN, trace.build())) == []
    twice = scheduled("StepLR", "StepLR")
    assert [step for step, *_ in broken(decide("order", STEP_BETWEEN, twice.build()))] == [
        0,
        1,
        2,
        3,
    ]


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
        assert report_of(learned, other.build()).findings == []
    stale = plain("stale.py").replace("Net.fc1.weight").steps(3)
    assert report_of(learned, stale.build()).findings
