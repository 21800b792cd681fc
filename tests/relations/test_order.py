"""order: after A, B comes before the next C."""

from __future__ import annotations

import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN, TraceBuilder
from tests.golden import Golden
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.relations.registry import RELATIONS
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families

F = Families


def order(after: str, needs: str, before: str, **more: str) -> dict[str, str]:
    return {"after": after, "needs": needs, "before": before, **more}


CLEAR = order(F.OPTIMIZER_STEP, F.ZERO_GRAD, F.BACKWARD)
CLEAR_EACH = order(F.OPTIMIZER_STEP, F.ZERO_GRAD, F.OPTIMIZER_STEP)
APPLY = order(F.BACKWARD, F.OPTIMIZER_STEP, F.ZERO_GRAD)
COMPUTE = order(F.ZERO_GRAD, F.BACKWARD, F.OPTIMIZER_STEP)
RETURN = order(F.EVAL, F.TRAIN, F.BACKWARD)
ANEW = order(F.OPTIMIZER_STEP, F.MODULE, F.BACKWARD)
SCHEDULE = order(F.SCHEDULER_STEP, F.OPTIMIZER_STEP, F.SCHEDULER_STEP)
CLIP = order(F.BACKWARD, F.CLIP_NORM, F.OPTIMIZER_STEP)


def net() -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP).optimizer().train()


def two() -> TraceBuilder:
    parts = TraceBuilder().process().model("G", MLP).model("D", MLP)
    names = [[f"{model}.{name}" for name in MLP] for model in ("G", "D")]
    return parts.optimizer(names=names[0]).optimizer(names=names[1]).train()


def outcome(params, trace: TraceBuilder):
    return broken(decide("order", params, trace.build()))


LOOPS = {
    "zero_grad first": net().steps(4),
    "zero_grad last": net().steps(4, style="B"),
    "evaluation": net().steps(4, eval_every=1),
    "schedule": net().steps(4, scheduler=True),
    "accumulation": net().steps(4, accumulate=3),
    "two optimizers": two().steps(4),
    "sampled": net().steps(2).skipped_steps(2).steps(2),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("params", [CLEAR, CLEAR_EACH, APPLY, COMPUTE, RETURN, SCHEDULE], ids=str)
def test_healthy_loops_keep_every_order(params, loop):
    assert outcome(params, LOOPS[loop]) == []


def test_a_missing_zero_grad_belongs_to_the_step_that_adds_to_old_gradients():
    trace = net().steps(2).steps(2, omit={"zero_grad"})
    assert outcome(CLEAR, trace) == [
        (2, Symptom.MISSING_ZERO_GRAD, F.ZERO_GRAD),
        (3, Symptom.MISSING_ZERO_GRAD, F.ZERO_GRAD),
    ]
    never = net().steps(3, omit={"zero_grad"})
    assert outcome(CLEAR, never)[0][0] == 1  # in step 0 there was nothing to clear


@pytest.mark.parametrize("params", [CLEAR, ANEW], ids=str)
def test_gradients_that_are_only_looked_at_may_be_added_to_others(params):
    """A saliency map between two steps, or a training by hand after the last."""
    looked = net().steps(2).begin_step().backward().zero_grad().forward().backward()
    assert outcome(params, looked.optimizer_step().steps(1)) == []
    assert outcome(params, net().steps(2).begin_step().backward().backward().end_step()) == []
    used = net().steps(2).begin_step().backward().optimizer_step().end_step()
    assert [step for step, _, _ in outcome(params, used)] == [2]


def test_gradients_that_are_assigned_need_not_be_cleared():
    trace = net().steps(4, omit={"zero_grad", "backward"})
    assert outcome(CLEAR_EACH, trace) == []
    assert outcome(CLEAR_EACH, net().steps(4, omit={"zero_grad"})) != []


def test_a_missing_step_belongs_to_the_step_of_its_backward():
    trace = net().step().steps(2, omit={"optimizer_step"}).step()
    assert outcome(APPLY, trace) == [
        (1, Symptom.MISSING_STEP, F.OPTIMIZER_STEP),
        (2, Symptom.MISSING_STEP, F.OPTIMIZER_STEP),
    ]


def cleared_between(trace: TraceBuilder) -> TraceBuilder:
    """The gradients of one loss are cleared before those of the other are computed."""
    for _ in range(2):
        trace.begin_step().zero_grad().forward().backward().zero_grad().backward()
        trace.optimizer_step()
    return trace


def test_gradients_that_are_cleared_between_two_losses_are_lost():
    lost = Symptom.GRADIENT_LOST
    assert outcome(APPLY, cleared_between(net())) == [
        (0, lost, F.OPTIMIZER_STEP),
        (1, lost, F.OPTIMIZER_STEP),
    ]


def test_a_step_that_is_missing_before_that_of_another_optimizer_stays_one():
    trace = two()
    for _ in range(2):  # of D nothing is applied
        trace.begin_step().zero_grad("opt1").forward("D").backward([f"D.{n}" for n in MLP])
        trace.zero_grad("opt0").forward("G").backward([f"G.{n}" for n in MLP])
        trace.optimizer_step("opt0")
    found = outcome(APPLY, trace)
    assert found
    assert {symptom for _, symptom, _ in found} == {Symptom.MISSING_STEP}


def test_the_optimizer_steps_before_backward():
    assert outcome(COMPUTE, net().steps(2, style="C"))[0] == (
        0,
        Symptom.STEP_WITHOUT_GRADIENT,
        F.BACKWARD,
    )


def test_a_step_that_the_scaler_skips_counts_as_made():
    trace = net()
    for _ in range(3):
        trace.begin_step().zero_grad().forward().backward().call(F.SCALER_STEP, owner="opt0")
    assert outcome(APPLY, trace) == []


def test_a_closure_computes_gradients_many_times():
    trace = net()
    for _ in range(3):
        trace.begin_step()
        start = trace.now_ns
        for _ in range(4):
            trace.zero_grad().forward().backward()
        api, family = "torch.optim.lbfgs.LBFGS.step", F.OPTIMIZER_STEP
        trace.call(api, family=family, owner="opt0", start_ns=start)
    assert outcome(APPLY, trace) == []


def test_a_loss_that_is_passed_back_again_without_a_forward():
    again = net().step()
    again.begin_step().zero_grad().backward().optimizer_step()
    assert [step for step, *_ in outcome(ANEW, again)] == [1]
    apart = two().step()  # several losses may come of one forward, or of none
    apart.begin_step().zero_grad("opt0").backward().optimizer_step("opt0")
    assert outcome(ANEW, apart) == []


def test_an_optimizer_that_steps_within_backward():
    trace = net()
    for _ in range(3):
        trace.begin_step().forward()
        start = trace.now_ns
        trace.optimizer_step().call(F.BACKWARD, start_ns=start)
    assert outcome(ANEW, trace) == []


def test_each_optimizer_by_itself():
    trace = two()
    for step in range(3):
        trace.begin_step().zero_grad("opt0")
        if step == 0:
            trace.zero_grad("opt1")
        trace.forward().backward().optimizer_step("opt0").optimizer_step("opt1")
    assert [found[0] for found in outcome(CLEAR_EACH, trace)] == [1, 2]
    assert outcome(CLEAR, trace) == []  # some zero_grad came


def test_step_and_zero_grad_of_one_optimizer_before_those_of_the_other():
    trace = two().begin_step().zero_grad("opt0").zero_grad("opt1")
    for _ in range(3):
        trace.forward().backward()
        for name in ("opt0", "opt1"):
            trace.optimizer_step(name).zero_grad(name)
        trace.end_step().begin_step()
    assert outcome(COMPUTE, trace) == []
    assert outcome(CLEAR_EACH, trace) == []


@pytest.mark.parametrize(
    ("forgets", "found"), [(False, []), (True, [(Symptom.MISSING_ZERO_GRAD, F.ZERO_GRAD)] * 3)]
)
def test_one_optimizer_accumulates_beside_another(forgets, found):
    """The backward for the one adds to nothing that the other applies."""
    trace = two()
    for step in range(8):
        trace.forward("G").backward(skip=["D."])
        if step % 2:
            trace.optimizer_step("opt0").zero_grad("opt0")
        trace.forward("D")
        if not forgets or step < 5:
            trace.zero_grad("opt1")
        trace.backward(skip=["G."]).optimizer_step("opt1").end_step()
    assert [(symptom, api) for _, symptom, api in outcome(CLEAR, trace)] == found


def test_training_goes_on_in_evaluation_mode():
    stuck = net().steps(2).evaluate(back_to_train=False).steps(1)
    assert outcome(RETURN, stuck) == [(2, Symptom.EVAL_MODE, "Net")]


def test_a_teacher_that_stays_in_evaluation_mode_is_not_awaited():
    trace = TraceBuilder().process().model("Net", MLP).model("Teacher", MLP)
    trace.optimizer(names=[f"Net.{name}" for name in MLP]).train(False, "Teacher")
    for _ in range(3):
        trace.begin_step().zero_grad().forward("Teacher", grad=False).forward("Net").backward()
        trace.optimizer_step()
    assert outcome(RETURN, trace) == []


def test_a_schedule_without_updates():
    trace = net().steps(2, scheduler=True).scheduler_step().scheduler_step()
    assert len(outcome(SCHEDULE, trace)) == 2


def test_a_call_that_raised_did_not_happen():
    trace = net().steps(1).begin_step()
    trace.call("torch.optim.adam.Adam.zero_grad", family=F.ZERO_GRAD, exception="ValueError")
    trace.forward().backward().optimizer_step()
    assert [found[0] for found in outcome(CLEAR, trace)] == [1]


def clipped(program: str) -> TraceBuilder:
    trace = TraceBuilder().process(argv0=f"/home/me/{program}").model("Net", MLP).optimizer()
    for _ in range(10):
        trace.begin_step().zero_grad().forward().backward().call(F.CLIP_NORM).optimizer_step()
    return trace


def test_clipping_is_asked_for_of_the_same_program_only():
    relations = {"order": RELATIONS["order"]}
    learned = learn(clipped("a.py").build(), relations=relations).invariants
    found = claims(learned, "order", needs=Families.CLIP_NORM)
    assert [i.hypothesis.params["program"] for i in found] == ["a.py"]
    for program, expected in (("a.py", 5), ("b.py", 0)):
        trace = TraceBuilder().process(argv0=program).model("Net", MLP).optimizer().steps(5)
        assert len(outcome(found[0].hypothesis.params, trace)) == expected


def test_what_comes_at_its_own_pace_is_never_asked_for(golden: Golden):
    trace = net().steps(30, eval_every=1, scheduler=True)
    found = learn(trace.build())
    cleared = {"after": F.OPTIMIZER_STEP, "needs": F.ZERO_GRAD, "before": F.BACKWARD}
    assert golden.each(claims(found, "order", **cleared))
    needed = set(values_of(found, "order", "needs"))
    assert not needed & {"torch.nn.Module.eval", F.SCHEDULER_STEP}


def test_accumulation_in_the_reference_leaves_what_it_keeps(golden: Golden):
    found = learn(net().steps(10, accumulate=2).build())
    applied = {"after": F.BACKWARD, "needs": F.OPTIMIZER_STEP, "before": F.ZERO_GRAD}
    assert golden.each(claims(found, "order", **applied))
    assert not claims(found, "order", after=F.BACKWARD, before=F.BACKWARD)


def test_parameters_that_no_version_wrote_are_refused():
    with pytest.raises(ValueError, match="nothing is known"):
        decide("order", order(F.BACKWARD, F.EVAL, F.BACKWARD), [])


VECTORS = {"fc1.weight_u": "torch.nn.modules.linear.Linear", **BN_BUFFERS}
FILL = {"role": "buffer", "leaf": "weight_u", "module_class": "torch.nn.modules.linear.Linear"}
COMPUTED = {**FILL, "program": "train.py"}


def normalised(steps: int = 12, *, early: bool = False, load: bool = False) -> list[Event]:
    """A model whose buffers each pass in training mode computes, evaluated at the end."""
    trace = TraceBuilder().process().model("Net", MLP_BN, buffers=VECTORS).optimizer()
    if load:
        trace.add(CheckpointEvent, op="load_state_dict", target="Net", matched=4)
    if early:
        trace.evaluate()
    return trace.steps(steps).evaluate().steps(1).build()


def test_buffers_that_are_used_before_they_are_computed_are_told(golden: Golden):
    result = learn(normalised())
    found = golden.each(claims(result, "order", role="buffer"))
    assert values_of(found, "order", "leaf") == ["weight_u"]  # nothing of the statistics
    (finding,) = report_of(result.invariants, normalised(early=True)).findings
    assert (finding.code, finding.severity, finding.first_step) == ("order", "warning", 0)
    assert finding.subject.variable == "Net.fc1.weight_u"
    assert not report_of(result.invariants, normalised(40)).findings


def test_buffers_that_were_loaded_need_not_be_computed():
    early = normalised(early=True)
    assert broken(decide("order", COMPUTED, early))[0][1] is Symptom.WRONG_ORDER
    assert broken(decide("order", COMPUTED, normalised(early=True, load=True))) == []


def test_a_program_that_uses_them_early_is_left_alone():
    assert not claims(learn(normalised(early=True)), "order", role="buffer")
