"""contains: during A, every variable of a kind changes, or B is called."""

from __future__ import annotations

import pytest

from tests.builders import (
    ADAM,
    BATCH_NORM,
    BN_BUFFERS,
    LINEAR,
    MLP,
    MLP_BN,
    TraceBuilder,
    emptied,
)
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from tests.rules.numbers import norm, numbered
from traincheck.readings.distributed.rank_steps import STUCK
from traincheck.schema.claims import Invariant
from traincheck.schema.events import StateEvent
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import COMPILED, Families

PARAMETERS = {"outer": "step", "role": "parameter", "change": "changes"}
GRADIENTS = {"outer": "step", "role": "gradient", "change": "changes"}
CLEARED = {"outer": "step", "role": "gradient", "change": "cleared"}
BUFFERS = {"outer": "step", "role": "buffer", "change": "changes"}
HELD = {"outer": Families.OPTIMIZER_STEP, "role": "parameter", "change": "changes"}
STATE = {"outer": Families.OPTIMIZER_STEP, "role": "optimizer_state", "change": "changes"}
MODE = {"outer": "step", "inner": Families.MODULE, "args": {"training": True}}
FIRST = {"outer": "step", "role": "gradient", "change": "changes", "within": 8}


def landmark(family: str) -> dict[str, str]:
    return {"outer": "step", "inner": family}


def net(parameters=MLP, **options) -> TraceBuilder:
    return TraceBuilder().process().model("Net", parameters, **options).optimizer()


def outcome(params, trace: TraceBuilder):
    return broken(decide("contains", params, trace.build()))


@pytest.mark.parametrize("style", ["A", "B"])
@pytest.mark.parametrize("params", [PARAMETERS, GRADIENTS, CLEARED, HELD, STATE], ids=str)
def test_a_healthy_loop_gives_positive_examples_only(params, style):
    examples = decide("contains", params, net().steps(5, style=style, eval_every=2).build())
    assert len(examples) >= 16
    assert all(example.holds for example in examples)


def test_a_parameter_that_stays_is_named_in_the_step():
    trace = net().steps(2).steps(STUCK + 1, not_updated={"Net.fc1.weight"}).steps(2)
    told = [(step, Symptom.NOT_UPDATED, "Net.fc1.weight") for step in range(2, 6)]
    assert outcome(PARAMETERS, trace) == told
    assert outcome(HELD, trace) == told
    never = net().steps(2, not_updated={"Net.fc1.weight"})
    assert [step for step, *_ in outcome(PARAMETERS, never)] == [0, 1]


def test_each_step_in_which_one_rests_has_a_context_of_its_own():
    """It had no gradient in the first of them, which is no fault of the update."""
    one = {"Net.fc1.weight"}
    trace = net().steps(2).steps(1, no_gradient=one, not_updated=one)
    examples = decide("contains", PARAMETERS, trace.steps(STUCK + 1, not_updated=one).build())
    had = {e.step: e.context["has_gradient"] for e in examples if not e.holds}
    assert had == {2: False, 3: True, 4: True, 5: True, 6: True}


@pytest.mark.parametrize("params", [PARAMETERS, HELD], ids=str)
def test_one_that_has_moved_may_rest_for_a_step_or_two(params):
    """Its update was rounded away, or a wrapper left it out (TC102)."""
    trace = net().steps(2).steps(STUCK - 1, not_updated={"Net.fc1.weight"}).steps(2)
    assert outcome(params, trace) == []


@pytest.mark.parametrize("params", [PARAMETERS, HELD], ids=str)
def test_updates_may_round_to_nothing_once_gradients_have_faded(params):
    """As long as the parameter moved before: a lost update is one from the first step on."""

    def run(left: float, begun: int = 4):
        names = [f"Net.{name}" for name in MLP]
        trace = net().steps(begun).steps(8 - begun, not_updated=names).build()
        events = numbered(trace, gradient=lambda name, at: norm(left if at >= 4 else 2.0))
        return broken(decide("contains", params, events))

    assert run(1e-6) == []
    assert {step for step, *_ in run(0.1)} == {4, 5, 6, 7}
    assert {step for step, *_ in run(1e-6, begun=0)} == set(range(1, 8))


def test_a_frozen_parameter_is_called_frozen():
    trace = net(frozen={"Net.fc1.bias"}).steps(2)
    assert outcome(PARAMETERS, trace) == [
        (0, Symptom.FROZEN, "Net.fc1.bias"),
        (1, Symptom.FROZEN, "Net.fc1.bias"),
    ]
    assert outcome(GRADIENTS, trace)[0] == (0, Symptom.FROZEN, "Net.fc1.bias")


@pytest.mark.parametrize("held", [True, False])
def test_an_average_that_moves_has_no_gradient(held):
    """Else nothing would say that the claim is one about what is not frozen."""
    average = "Net.fc2.weight"
    trace = TraceBuilder().process().model("Net", MLP, frozen={average})
    trace.optimizer(names=None if held else [f"Net.{name}" for name in MLP if name != "fc2.weight"])
    for _ in range(10):
        trace.write(average).step()
    assert {name for *_, name in outcome(FIRST, trace)} == {average}


def test_one_frozen_later_is_called_frozen_from_then_on():
    trace = net().steps(2).freeze("Net.fc1.weight").steps(1, no_gradient={"Net.fc1.weight"})
    assert [found[:2] for found in outcome(GRADIENTS, trace)] == [(2, Symptom.FROZEN)]


def test_a_parameter_that_no_optimizer_holds():
    trace = TraceBuilder().process().model("Net", MLP).optimizer(names=["Net.fc2.weight"]).steps(2)
    found = outcome(PARAMETERS, trace)
    assert {what for step, what, name in found} == {Symptom.NOT_IN_OPTIMIZER}
    assert {name for step, what, name in found} == set(f"Net.{p}" for p in MLP) - {"Net.fc2.weight"}
    assert outcome(HELD, trace) == []  # what it does not hold is not its business
    assert {step for step, *_ in outcome(CLEARED, trace)} == {1}  # nothing to clear in step 0


def searching(*resting: int) -> TraceBuilder:
    """LBFGS, which changes nothing in some steps: it has found no better point."""
    trace = net()
    for number in range(6):
        trace.begin_step().zero_grad().forward().backward()
        names = {f"Net.{path}" for path in MLP} if number in resting else set()
        span = trace.new_span()
        for variable in trace.held_by(trace.optimizers["opt0"]):
            if variable.name not in names:
                trace.state(variable, "parameter", "content", after=span)
        trace.count(optimizer_step=1)
        trace.call(
            "torch.optim.lbfgs.LBFGS.step",
            span=span,
            family=Families.OPTIMIZER_STEP,
            owner="opt0",
            args={"closure": "<function>"},
        )
    return trace


@pytest.mark.parametrize("params", [PARAMETERS, HELD], ids=str)
def test_a_search_that_has_ended_changes_nothing(params):
    assert outcome(params, searching(4, 5)) == []
    # It never begins. The learning rate, which may be zero, is told at the end of the first step.
    assert {step for step, *_ in outcome(params, searching(*range(6)))} == {1, 2, 3, 4, 5}


def test_a_head_replaced_after_the_optimizer_was_built():
    trace = net().replace("Net.fc2.weight", "Net.fc2.bias").steps(1)
    assert [(what, name) for _, what, name in outcome(PARAMETERS, trace)] == [
        (Symptom.NOT_IN_OPTIMIZER, "Net.fc2.weight"),
        (Symptom.NOT_IN_OPTIMIZER, "Net.fc2.bias"),
    ]


def test_the_gradient_of_a_replaced_head_is_not_its_successors():
    head = ("Net.fc2.weight", "Net.fc2.bias")
    trace = net().steps(2).replace(*head).optimizer().step(no_gradient=head).step()
    assert outcome(CLEARED, trace) == []
    missing = outcome(CLEARED, trace.steps(1, omit={"zero_grad"}))
    assert {name for step, _, name in missing if step == 4} >= set(head)


@pytest.mark.parametrize("params", [PARAMETERS, GRADIENTS, CLEARED], ids=str)
def test_a_loss_network_in_no_optimizer_is_left_alone(params):
    names = [f"Net.{name}" for name in MLP]
    trace = TraceBuilder().process().model("Net", MLP).model("Vgg", MLP).optimizer(names=names)
    assert outcome(params, trace.steps(3)) == []


def test_a_model_that_was_made_anew_after_the_optimizer():
    trace = net().replace(*[f"Net.{name}" for name in MLP]).steps(2)
    assert {name for _, _, name in outcome(PARAMETERS, trace)} == {f"Net.{name}" for name in MLP}


def test_a_parameter_that_gets_no_gradient():
    trace = net().steps(2, no_gradient={"Net.fc1.weight"})
    assert outcome(GRADIENTS, trace)[0] == (0, Symptom.NO_GRADIENT, "Net.fc1.weight")


@pytest.mark.parametrize("params", [PARAMETERS, GRADIENTS, CLEARED, HELD, FIRST], ids=str)
def test_what_has_no_elements_is_asked_for_nothing(params):
    stuck = {"Net.fc1.weight"}
    events = net().steps(9, no_gradient=stuck, not_updated=stuck).build()
    examples = decide("contains", params, emptied(events, stuck))
    assert examples
    assert all(example.holds for example in examples)


def test_gradients_that_are_kept():
    trace = net().steps(2).steps(2, omit={"zero_grad"})
    found = outcome(CLEARED, trace)
    assert {(step, what) for step, what, _ in found} == {
        (2, Symptom.MISSING_ZERO_GRAD),
        (3, Symptom.MISSING_ZERO_GRAD),
    }
    assert outcome(CLEARED, net().steps(4, set_to_none=False)) == []


def test_accumulation_clears_once_a_window():
    assert outcome(CLEARED, net().steps(4, accumulate=3)) == []
    assert outcome(GRADIENTS, net().steps(4, accumulate=3)) == []


def test_a_learning_rate_of_zero_explains_why_nothing_changed():
    everything = {f"Net.{name}" for name in MLP}
    warm_up = TraceBuilder().process().model("Net", MLP).optimizer(lr=0.0)
    assert outcome(PARAMETERS, warm_up.steps(3, not_updated=everything)) == []
    assert outcome(PARAMETERS, net().steps(3, not_updated=everything)) != []


def test_the_end_of_a_schedule_explains_why_something_did_not_change():
    def at(rates):
        trace = net().steps(2)
        for rate in rates:
            trace.optimizers["opt0"].hyper["lr"] = rate
            trace.step(not_updated={"Net.fc1.weight"}).end_step()
        return trace

    for params in (PARAMETERS, HELD):
        assert outcome(params, at([9e-6, 1e-6, 1e-6, 1e-6])) == []
        assert outcome(params, at([9e-4, 1e-4, 1e-4])) != []
        assert outcome(params, at([9e-6])) == []


def test_the_beginning_of_a_schedule_explains_why_something_did_not_change():
    def begins(lr):
        trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=lr)
        return trace.step(not_updated={"Net.fc1.weight"}).steps(3)

    for params in (PARAMETERS, HELD):
        assert outcome(params, begins(1e-8)) == []
        assert outcome(params, begins(1e-6)) != []


def test_a_bias_beside_a_moving_weight_may_round_to_what_it_was():
    assert outcome(PARAMETERS, net().steps(3, not_updated={"Net.fc1.bias"})) == []
    both = {"Net.fc1.bias", "Net.fc1.weight"}
    assert {n for _, _, n in outcome(PARAMETERS, net().steps(3, not_updated=both))} == both


@pytest.mark.parametrize(
    ("weight", "bias"),
    [("parametrizations.weight.original1", "bias"), ("weight_v", "bias"), ("W", "b")],
)
def test_a_bias_beside_a_weight_of_another_name_may_round_too(weight: str, bias: str):
    names = {f"fc.{weight}": MLP["fc1.weight"], f"fc.{bias}": MLP["fc1.bias"]}
    trace = TraceBuilder().process().model("Net", names).optimizer()
    assert outcome(PARAMETERS, trace.steps(3, not_updated={f"Net.fc.{bias}"})) == []
    trace = TraceBuilder().process().model("Net", names).optimizer()
    stuck = trace.steps(3, not_updated={f"Net.fc.{weight}"})
    assert {n for _, _, n in outcome(PARAMETERS, stuck)} == {f"Net.fc.{weight}"}


def scaled(trace: TraceBuilder):
    """The events of a trace in which Net.scale is of one element."""
    for event in trace.build():
        if isinstance(event, StateEvent) and event.name == "Net.scale" and event.summary:
            yield event.replace(summary=event.summary.replace(shape=(1,)))
        else:
            yield event


def test_a_single_number_may_round_to_what_it_was_while_others_move():
    parameters = {**MLP, "scale": MLP["fc1.bias"]}
    stays = {"Net.scale"}
    everything = {f"Net.{name}" for name in parameters}
    lost = scaled(net(parameters).steps(3, not_updated=everything))
    assert {n for _, _, n in broken(decide("contains", PARAMETERS, lost))} == everything
    assert outcome(HELD, net(parameters).steps(3, not_updated=stays)) != []
    for params in (PARAMETERS, HELD):
        trace = scaled(net(parameters).steps(3, not_updated=stays))
        assert broken(decide("contains", params, trace)) == []


def test_a_single_number_that_no_optimizer_holds_is_told():
    forgotten = TraceBuilder().process().model("Net", {**MLP, "scale": MLP["fc1.bias"]})
    trace = forgotten.optimizer(names=[f"Net.{name}" for name in MLP]).steps(1)
    expected = [(0, Symptom.NOT_IN_OPTIMIZER, "Net.scale")]
    assert broken(decide("contains", PARAMETERS, scaled(trace))) == expected


def test_a_bias_that_an_average_moves_may_round_too():
    """A momentum encoder: frozen, held, and moved along with its weight."""
    trace = net().freeze("Net.fc1.weight", "Net.fc1.bias").step()
    trace.write("Net.fc1.weight")
    assert outcome(PARAMETERS, trace.end_step()) == []
    trained = net().freeze("Net.fc1.bias").step(not_updated={"Net.fc1.bias"})
    assert outcome(PARAMETERS, trained.end_step()) == [(0, Symptom.FROZEN, "Net.fc1.bias")]


def test_a_bias_that_is_frozen_after_its_update_may_round_too():
    """As the critics of SAC are, while the actor is trained."""
    trace = net().step(not_updated={"Net.fc1.bias"}).freeze("Net.fc1.bias").begin_step()
    assert outcome(PARAMETERS, trace) == []


def test_buffers_count_in_steps_that_run_their_model():
    params = {**BUFFERS, "leaf": "running_mean"}
    good = net(MLP_BN, buffers=BN_BUFFERS).steps(3)
    assert outcome(params, good) == []
    bad = net(MLP_BN, buffers=BN_BUFFERS).steps(2).step(omit={"buffers"})
    assert outcome(params, bad) == [(2, Symptom.STATE_UNCHANGED, "Net.bn.running_mean")]


def test_optimizer_state_that_stays():
    trace = net().steps(2).step(omit={"state"})
    found = outcome(STATE, trace)
    assert {(step, what) for step, what, _ in found} == {(2, Symptom.STATE_UNCHANGED)}
    assert "Net.fc1.weight/exp_avg" in {name for *_, name in found}


@pytest.mark.parametrize(
    ("omitted", "family", "symptom", "step"),
    [
        ("optimizer_step", Families.OPTIMIZER_STEP, Symptom.MISSING_STEP, 0),
        ("zero_grad", Families.ZERO_GRAD, Symptom.MISSING_ZERO_GRAD, 1),
        ("backward", Families.BACKWARD, Symptom.NO_BACKWARD, 0),
    ],
)
def test_a_landmark_that_is_missing(omitted, family, symptom, step):
    assert outcome(landmark(family), net().steps(3)) == []
    found = outcome(landmark(family), net().steps(3, omit={omitted}))
    assert found[0] == (step, symptom, family)


def test_a_backward_that_is_not_called_and_one_that_comes_too_late(golden: Golden):
    learned = learn(net().steps(10).build()).invariants
    missing = report_of(learned, net().steps(4, omit={"backward"}).build()).findings[0]
    golden(missing)
    assert mentions(missing, "backward()")
    late = report_of(learned, net().steps(4, style="C").build()).findings[0]
    golden(late)


def test_gradients_that_no_backward_adds_to_need_not_be_cleared():
    """Evolution strategies assign them."""
    trace = net().steps(4, omit={"zero_grad", "backward"})
    assert outcome(landmark(Families.ZERO_GRAD), trace) == []


@pytest.mark.parametrize("params", [landmark(Families.ZERO_GRAD), CLEARED], ids=str)
def test_gradients_that_no_step_applies_need_not_be_cleared(params):
    """They were computed to look where they point: a saliency map, a sample of an energy."""
    looked = net().steps(2).begin_step().forward().forward().backward().steps(2)
    assert outcome(params, looked) == []
    kept = net().steps(2).begin_step().forward().backward().optimizer_step().end_step()
    assert [step for step, _, _ in outcome(params, kept)][:1] == [2]


def test_a_part_that_ran_by_itself_before_the_whole_is_judged_within_it():
    """To see how wide its result is, say; its parameters are the whole's from then on."""
    body = {name: cls for name, cls in MLP.items() if name.startswith("fc1")}
    trace = TraceBuilder().process().model("Body", body).train(False).forward("Body")
    trace.model("Net", MLP)
    for name in body:  # the same objects under a new name
        trace.models["Net"].parameters[f"Net.{name}"].identity = identity(trace, f"Body.{name}")
        trace.state(trace.models["Net"].parameters[f"Net.{name}"], "parameter", "replaced")
    trace.optimizer().train()
    for _ in range(2):
        trace.begin_step().zero_grad().forward("Net").backward().optimizer_step()
    assert outcome(MODE, trace) == []


def identity(trace: TraceBuilder, name: str) -> int:
    return trace.parameters()[name].identity


def normalized() -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer()


def test_training_in_evaluation_mode():
    assert outcome(MODE, normalized().train().steps(3, eval_every=1)) == []
    stuck = normalized().train().steps(2).evaluate(back_to_train=False).steps(3)
    assert outcome(MODE, stuck) == [(step, Symptom.EVAL_MODE, "Net") for step in (2, 3, 4)]
    once = normalized().train().steps(2).evaluate(back_to_train=False).steps(1).train().steps(2)
    assert outcome(MODE, once) == []


def test_evaluation_mode_that_changes_nothing():
    """No dropout and no batch norm; or norms whose statistics are meant to stay (TC301)."""
    plain = net().train().steps(2).evaluate(back_to_train=False).steps(1)
    assert outcome(MODE, plain) == []
    kept = normalized().train(False).steps(3)
    assert outcome(MODE, kept) == []
    blank = normalized().mark("model", name="Net", modules={"Net.bn": {"initial": True}})
    assert len(outcome(MODE, blank.train(False).steps(3))) == 3


def test_a_teacher_in_evaluation_mode_is_left_alone():
    trace = TraceBuilder().process().model("Net", MLP).model("Teacher", MLP)
    trace.optimizer(names=[f"Net.{name}" for name in MLP]).train().train(False, "Teacher")
    assert outcome(MODE, trace.steps(3)) == []
    assert len(decide("contains", MODE, trace.build())) == 3


def test_optimizers_that_take_turns():
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    for model in "GD":
        trace.optimizer(names=[f"{model}.{name}" for name in MLP])
    for number in range(6):
        which = "GD"[number % 2]
        trace.begin_step().zero_grad(f"opt{number % 2}").forward(which)
        trace.backward([f"{which}.{name}" for name in MLP]).optimizer_step(f"opt{number % 2}")
    for params in (PARAMETERS, GRADIENTS, CLEARED, HELD):
        assert outcome(params, trace) == []


def test_a_turn_whose_gradients_pass_through_the_other_model():
    """The loss of an actor is what its critic says: the critic waits, and holds that gradient."""
    trace = TraceBuilder().process().model("Critic", MLP).model("Actor", MLP)
    names = {model: [f"{model}.{name}" for name in MLP] for model in ("Critic", "Actor")}
    for held in names.values():
        trace.optimizer(names=held)
    for number in range(6):
        turn = number % 2
        reached = names["Critic"] + (names["Actor"] if turn else [])
        trace.begin_step().zero_grad(f"opt{turn}").forward().backward(reached)
        trace.optimizer_step(f"opt{turn}")
    for params in (PARAMETERS, CLEARED):
        assert outcome(params, trace) == []


def test_a_gradient_that_comes_and_goes_within_backward():
    def trace(*, is_updated: bool) -> TraceBuilder:
        made = net()
        for _ in range(10):
            made.begin_step().forward().backward(skip=[f"Net.{name}" for name in MLP])
            for variable in made.models["Net"].parameters.values():
                variable.has_grad = is_updated
            made.optimizer_step()
            for variable in made.models["Net"].parameters.values():
                variable.has_grad = False
        return made

    assert outcome(FIRST, trace(is_updated=True)) == []
    assert {name for *_, name in outcome(FIRST, trace(is_updated=False))} == {
        f"Net.{name}" for name in MLP
    }


def test_an_expert_that_is_not_asked_for():
    experts = [f"Net.experts.{number}.weight" for number in range(3)]
    shapes = {name.removeprefix("Net."): (4, 4) for name in experts} | {"gate.weight": (3, 4)}

    def trace(*absent: str) -> TraceBuilder:
        made = net(shapes)
        for number in range(10):
            made.step(no_gradient={experts[2], *absent[number % 2 :][:1]})
        return made

    assert outcome(FIRST, trace(*experts[:2])) == []  # the others come and go
    assert outcome(FIRST, trace()) == [(0, Symptom.NO_GRADIENT, experts[2])]


def test_an_expert_that_goes_without_in_a_few_steps():
    """Where each one was asked for in all steps of the reference; for good is another matter."""
    experts = [f"Net.experts.{number}.weight" for number in range(3)]
    shapes = {name.removeprefix("Net."): (4, 4) for name in experts} | {"gate.weight": (3, 4)}

    def trace(*without: int) -> TraceBuilder:
        made = net(shapes)
        for number in range(16):
            made.step(no_gradient=experts[2:] if number in without else ())
        return made

    assert outcome(GRADIENTS, trace(5, 6, 9)) == []
    assert outcome(GRADIENTS, trace(*range(5, 16)))[0] == (5, Symptom.NO_GRADIENT, experts[2])
    frozen = net(shapes).step().step()
    frozen.freeze(experts[2]).step(no_gradient=experts[2:], not_updated=experts[2:])
    assert outcome(GRADIENTS, frozen)[0] == (2, Symptom.FROZEN, experts[2])


def test_a_network_that_only_tells_what_an_image_looks_like():
    image = TraceBuilder().process().model("Net", MLP).optimizer(names=(), foreign={"opt0[0].0": 9})
    assert outcome(PARAMETERS, image.steps(3)) == []
    dead = {
        f"Net.{name}": number for number, name in enumerate(MLP, 90)
    }  # a model that is created again
    stale = TraceBuilder().process().model("Net", MLP).optimizer(names=(), foreign=dead)
    assert len(outcome(PARAMETERS, stale.steps(1))) == len(MLP)


def test_an_optimizer_that_never_steps_is_no_turn():
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    for model in "GD":
        trace.optimizer(names=[f"{model}.{name}" for name in MLP])
    for _ in range(2):
        trace.begin_step().zero_grad("opt0").zero_grad("opt1").forward().backward()
        trace.optimizer_step("opt0")
    assert {name[0] for _, _, name in outcome(PARAMETERS, trace)} == {"D"}


def test_a_first_step_that_changes_nothing_may_be_a_warm_up():
    everything = {f"Net.{name}" for name in MLP}
    trace = net().step(not_updated=everything).steps(3)
    assert outcome(PARAMETERS, trace) == []
    assert outcome(PARAMETERS, net().step().steps(STUCK, not_updated=everything)) != []


def test_gradients_that_are_cleared_by_hand():
    trace = net().steps(1)
    for _ in range(3):
        trace.begin_step().forward()
        for variable in trace.models["Net"].parameters.values():
            variable.has_grad = False
        trace.backward().optimizer_step()
    assert outcome(CLEARED, trace) == []


def test_an_unfinished_step_and_a_gap_prove_nothing():
    unfinished = net().steps(2).step(omit={"optimizer_step"})
    events = unfinished.build(last_complete=False)
    assert broken(decide("contains", PARAMETERS, events)) == []
    assert broken(decide("contains", landmark(Families.OPTIMIZER_STEP), events)) == []
    sampled = net().steps(2).skipped_steps(3).steps(2)
    for params in (PARAMETERS, CLEARED, landmark(Families.ZERO_GRAD)):
        assert outcome(params, sampled) == []


def test_an_update_that_a_scaler_skipped_is_not_awaited():
    trace = net().steps(1).begin_step().zero_grad().forward().backward()
    trace.counters["scaler_step"] = 1
    assert outcome(PARAMETERS, trace.call(Families.SCALER_STEP, owner="opt0")) == []
    assert outcome(landmark(Families.OPTIMIZER_STEP), trace) == []


def inside(
    trace: TraceBuilder, count: int, *, flag: bool = True, omit: bool = False
) -> TraceBuilder:
    """Calls of a class of the script's own that call one function."""
    for _ in range(count):
        span = 10_000 + len(trace.events)
        start = trace.now_ns
        if not omit:
            trace.call(
                "torch.nn.functional.dropout", parent=span, args={"p": 0.5, "training": flag}
            )
        trace.call(
            "__main__.Block.forward",
            span=span,
            start_ns=start,
            family=Families.MODULE,
            module="Net.block",
            training=flag,
        )
    return trace


BLOCK = {
    "outer": "__main__.Block.forward",
    "inner": "torch.nn.functional.dropout",
    "args": {"training": True},
}

CHANGES = {"outer": "step", "role": "parameter", "change": "changes"}
F_CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


def test_a_call_with_its_flags():
    assert outcome(BLOCK, inside(net(), 3)) == []
    wrong = outcome(BLOCK, inside(net(), 1, omit=True))
    assert wrong == [(0, Symptom.MISSING_CALL, BLOCK["inner"])]
    unlike = outcome(BLOCK, inside(inside(net(), 1), 1, flag=False))
    assert unlike == [(0, Symptom.WRONG_VALUE, BLOCK["inner"])]
    told = decide("contains", BLOCK, inside(net(), 1, flag=False).build())
    assert mentions(told[0].expected, "training=True")
    assert mentions(told[0].observed, "training=False")


def test_a_model_that_computes_its_own_loss_is_used_without_labels_too():
    """Text is generated with it; in training the loss is missed."""
    claim = {"outer": "__main__.Block.forward", "inner": F_CROSS_ENTROPY, "args": {}}

    def used(*, grad_enabled: bool) -> TraceBuilder:
        block = {"module": "Net.block", "family": Families.MODULE, "grad_enabled": grad_enabled}
        return net().begin_step().call(claim["outer"], start_ns=1, **block).end_step()

    assert outcome(claim, used(grad_enabled=False)) == []
    assert outcome(claim, used(grad_enabled=True)) == [(0, Symptom.MISSING_CALL, F_CROSS_ENTROPY)]


def test_a_class_of_another_script_is_another_class():
    of_this = {**BLOCK, "program": "train.py"}
    of_another = {**BLOCK, "program": "other.py"}
    assert len(outcome(of_this, inside(net(), 1, omit=True))) == 1
    assert outcome(of_another, inside(net(), 1, omit=True)) == []


def mode_of(claim: Invariant) -> object:
    """The mode of training that a claim is about."""
    (clause,) = claim.precondition.clauses
    (mode,) = [condition.value for condition in clause if condition.feature == "training"]
    return mode


def test_flags_that_follow_the_mode_are_learned_with_the_mode(golden: Golden):
    trace = inside(inside(net(), 20), 20, flag=False).steps(3)
    found = golden.each(claims(learn(trace.build()), "contains", inner=BLOCK["inner"]))
    assert values_of(found, "contains", "args") == [{"training": False}, {"training": True}]
    assert [mode_of(one) for one in found] == [False, True]


def test_what_was_seen_in_one_mode_is_not_claimed_of_the_other(golden: Golden):
    trace = inside(net(), 20).steps(3)
    found = golden.each(claims(learn(trace.build()), "contains", inner=BLOCK["inner"]))
    assert values_of(found, "contains", "args") == [{}]
    assert [mode_of(one) for one in found] == [True]


def test_the_general_statement_replaces_the_special_ones(golden: Golden):
    found = learn(net(MLP_BN, buffers=BN_BUFFERS).steps(10).build())
    golden.each(claims(found, "contains", **CHANGES))
    assert values_of(found, "contains", "module_class") == [None] * len(claims(found, "contains"))


def test_a_frozen_backbone_is_learned_as_requires_grad(golden: Golden):
    frozen = {"Net.fc1.weight", "Net.fc1.bias"}
    trace = (
        TraceBuilder()
        .process()
        .model("Net", {**MLP, "fc3.weight": LINEAR}, frozen=frozen)
        .optimizer(names=["Net.fc2.weight", "Net.fc2.bias", "Net.fc3.weight"])
        .steps(10)
    )
    golden.each(claims(learn(trace.build()), "contains", **CHANGES))


def test_masks_and_statistics_are_different_buffers(golden: Golden):
    trace = net(MLP_BN, buffers={"bn.running_mean": BATCH_NORM, "mask": "__main__.Net"})
    for _ in range(10):
        trace.begin_step().zero_grad()
        mask = trace.models["Net"].buffers.pop("Net.mask")  # this one never changes
        trace.forward()
        trace.models["Net"].buffers["Net.mask"] = mask
        trace.backward().optimizer_step()
    found = golden.each(claims(learn(trace.build()), "contains", role="buffer"))
    assert values_of(found, "contains", "leaf") == ["running_mean"]


def test_the_class_of_the_optimizer_is_not_pinned():
    result = learn(net().steps(10).build())
    contains = [i for i in result.invariants if i.hypothesis.relation == "contains"]
    assert contains
    assert not [i for i in contains if ADAM in str(i.hypothesis.params)]


@pytest.mark.parametrize(
    ("path", "symptom"),
    [("ema.weight", Symptom.STATE_UNCHANGED), ("other.weight", Symptom.FROZEN)],
)
def test_a_copy_that_nobody_trains_is_not_told_to_be_frozen(path, symptom):
    parameters = {**MLP, path: MLP["fc1.weight"]}
    trace = TraceBuilder().process().model("Net", parameters, frozen={f"Net.{path}"})
    trace.optimizer(names=[f"Net.{name}" for name in MLP]).steps(2)
    assert outcome(PARAMETERS, trace) == [(step, symptom, f"Net.{path}") for step in (0, 1)]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_calls_that_are_not_seen_within_a_model_that_is_compiled(is_compiled: bool):
    claim = {"outer": "__main__.Net.forward", "inner": f"{LINEAR}.forward", "args": {}}
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for step in range(3):
        trace.begin_step()
        if not step:  # traced
            trace.call(f"{LINEAR}.forward", parent=step + 1000, module="Net.fc1")
        begun = {} if step else {"start_ns": 0}  # before what it calls
        trace.call("__main__.Net.forward", span=step + 1000, module="Net", **begun)
        if is_compiled:
            trace.call(COMPILED, module="OptimizedModule", root=True)
        trace.backward().optimizer_step()
    found = [example.holds for example in decide("contains", claim, trace.end_step().build())]
    assert all(found) is is_compiled
    assert found


def with_loss(reduction: str, count: int = 12) -> TraceBuilder:
    """Steps of a loss module, which passes its arguments on to a function."""
    trace = net()
    outer = {"family": Families.MODULE, "module": "CrossEntropyLoss", "training": True}
    for step in range(count):
        trace.begin_step().zero_grad()
        span, start = 10_000 + step, trace.now_ns
        trace.call(F_CROSS_ENTROPY, parent=span, args={"reduction": reduction})
        trace.call(
            "torch.nn.modules.loss.CrossEntropyLoss.forward", span=span, start_ns=start, **outer
        )
        trace.backward().optimizer_step()
    return trace


def test_what_a_loss_module_was_given_is_learned_of_the_program(golden: Golden):
    learned = learn(with_loss("mean").build())
    found = claims(learned, "contains", outer="torch.nn.modules.loss.CrossEntropyLoss.forward")
    assert values_of(golden.each(found), "contains", "args") == [{"reduction": "mean"}]
    assert values_of(found, "contains", "program") == ["train.py"]


def test_updates_may_take_more_batches_than_they_did(golden: Golden):
    def updated(every: int, steps: int) -> TraceBuilder:
        trace = net()
        for step in range(steps):
            trace.begin_step().zero_grad().forward().backward()
            if step % every == every - 1:
                trace.optimizer_step()
        return trace

    learned = learn(updated(4, 48).build())
    found = claims(learned, "contains", outer="step", inner=Families.OPTIMIZER_STEP)
    assert values_of(golden.each(found), "contains", "within") == [16]
