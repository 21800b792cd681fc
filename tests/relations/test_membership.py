"""membership: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN, OTHER_SCRIPT, TraceBuilder
from tests.golden import Golden
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.torch_api import Families

BODY = ("Net.fc1.weight", "Net.fc1.bias")
BASE = {"program": "train.py"}
HEAD = [f"Net.{name}" for name in MLP if name.startswith("fc2")]


def run(
    steps: int = 20, *, frozen: tuple[str, ...] = BODY, names: list[str] | None = None
) -> TraceBuilder:
    """A model whose first layer is frozen."""
    trace = TraceBuilder().process().model("Net", MLP, frozen=frozen)
    trace.optimizer(names=names)
    still = set(frozen) | {f"Net.{n}" for n in MLP if names and f"Net.{n}" not in names}
    return trace.steps(steps, no_gradient=frozen, not_updated=still)


def test_what_is_frozen_and_what_is_trained_is_learned_in_few_places(golden: Golden):
    found = golden.each(claims(learn(run().build()), "membership"))
    for state, place in (
        ("frozen", "Net.fc1"),
        ("trainable", "Net.fc2"),
        ("still", "Net.fc1"),
        ("held", "Net"),
    ):
        assert values_of(found, "membership", "under", **{"is": state}) == [place]


def test_a_layer_that_is_not_frozen_is_told_in_the_first_step():
    report = report_of(learn(run().build()).invariants, run(frozen=()).build())
    first = report.findings[0]
    assert (first.code, first.first_step) == ("membership", 0)
    assert set(first.variables) >= set(BODY)
    assert not report_of(learn(run().build()).invariants, run(50).build()).findings


def test_a_layer_that_is_frozen_is_told():
    claim = {**BASE, "is": "trainable", "under": "Net.fc1"}
    assert broken(decide("membership", claim, run(3, frozen=()).build())) == []
    found = broken(decide("membership", claim, run(3).build()))
    assert found[:2] == [
        (0, Symptom.FROZEN, "Net.fc1.weight"),
        (0, Symptom.FROZEN, "Net.fc1.bias"),
    ]


def test_a_write_to_what_stays_as_it_is_is_told():
    claim = {**BASE, "is": "still", "under": "Net.fc1"}
    trace = run(3)
    trace.begin_step().backward(HEAD).optimizer_step(skip=set(BODY))
    trace.write(BODY[0])
    assert broken(decide("membership", claim, trace.build())) == [
        (3, Symptom.SILENT_WRITE, BODY[0])
    ]
    assert broken(decide("membership", claim, run(5).build())) == []


def test_what_no_optimizer_holds_is_told():
    claim = {**BASE, "is": "held", "under": "Net"}
    assert broken(decide("membership", claim, run(2, frozen=()).build())) == []
    found = broken(decide("membership", claim, run(2, frozen=(), names=HEAD).build()))
    assert {(step, symptom) for step, symptom, _ in found} == {
        (0, Symptom.NOT_IN_OPTIMIZER),
        (1, Symptom.NOT_IN_OPTIMIZER),
    }
    assert {name for *_, name in found} == set(BODY)
    free = {**BASE, "is": "free", "under": "Net.fc1"}
    assert broken(decide("membership", free, run(2, names=HEAD).build())) == []
    assert broken(decide("membership", free, run(1, frozen=()).build()))[0] == (
        0,
        Symptom.UNFROZEN,
        BODY[0],
    )


def test_what_is_frozen_is_free_whoever_holds_it():
    free = {**BASE, "is": "free", "under": "Net.fc1"}
    held = TraceBuilder().process().model("Net", MLP, frozen=BODY).optimizer()
    held.steps(2, no_gradient=BODY, not_updated=set(BODY))
    assert broken(decide("membership", free, held.build())) == []
    held.freeze(*BODY, frozen=False).steps(1)
    assert broken(decide("membership", free, held.build()))[0] == (2, Symptom.UNFROZEN, BODY[0])


def test_what_is_frozen_in_a_step_may_be_trained_again_in_the_next():
    """As a critic, while its generator trains. Where it is not, that step is the first."""
    claim = {**BASE, "is": "trainable", "under": "Net.fc1"}
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for _ in range(3):
        trace.freeze(*BODY, frozen=False).begin_step().zero_grad().forward()
        trace.backward().optimizer_step().freeze(*BODY)
    assert broken(decide("membership", claim, trace.end_step().build())) == []
    trace.steps(2, no_gradient=BODY, not_updated=set(BODY))
    found = broken(decide("membership", claim, trace.build()))
    assert [step for step, *_ in found] == [2, 2, 4, 4]
    assert found[0] == (2, Symptom.FROZEN, "Net.fc1.weight")


REACHED = {"is": "reached"}


def test_a_gradient_of_what_no_optimizer_holds_is_told_in_any_program():
    other = TraceBuilder().process(**OTHER_SCRIPT).model("Net", MLP).optimizer()
    assert broken(decide("membership", REACHED, other.steps(3).build())) == []
    stale = TraceBuilder().process(**OTHER_SCRIPT).model("Net", MLP).optimizer()
    found = broken(decide("membership", REACHED, stale.replace(*HEAD).steps(1).build()))
    assert found == [(0, Symptom.NOT_IN_OPTIMIZER, name) for name in sorted(HEAD)]


def test_a_network_whose_gradients_are_those_of_an_image():
    trace = TraceBuilder().process().model("Net", MLP).optimizer(names=(), foreign={"opt0[0].0": 9})
    assert decide("membership", REACHED, trace.steps(3).build()) == []


def test_a_loss_network_is_in_no_optimizer_for_a_reason():
    trace = TraceBuilder().process().model("Net", MLP).model("Loss", {"w": "Q"})
    trace.optimizer(names=[f"Net.{name}" for name in MLP])
    examples = decide("membership", REACHED, trace.steps(3).build())
    assert examples
    assert broken(examples) == []


def test_an_optimizer_of_another_copy_of_the_model_is_told():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().model("Net#2", MLP)
    trace.begin_step().zero_grad().forward("Net#2").backward([f"Net#2.{n}" for n in MLP])
    trace.optimizer_step(skip={f"Net.{n}" for n in MLP})
    assert {name for *_, name in broken(decide("membership", REACHED, trace.build()))} == {
        f"Net#2.{name}" for name in MLP
    }


@pytest.mark.parametrize("what", ["held", "trainable"])
def test_an_instance_beside_the_one_that_trains_is_not_judged(what):
    """It may be a spare, or a copy of the best model so far; unless gradients reach it."""
    claim = {**BASE, "is": what, "under": "Net"}
    spare, own = ([f"{model}.{name}" for name in MLP] for model in ("Net", "Net#2"))

    def play(held: list[str], reached: list[str]) -> set[str]:
        trace = TraceBuilder().process()
        trace.model("Net", MLP, frozen=() if what == "held" else BODY).model("Net#2", MLP)
        trace.optimizer(names=held)
        for _ in range(3):
            trace.begin_step().zero_grad().forward().backward(reached)
            trace.optimizer_step(skip={*spare, *own} - {*reached})
        found = broken(decide("membership", claim, trace.build()))
        return {name for *_, name in found}

    assert not play(own, own)
    told = {*spare} if what == "held" else {*BODY}
    assert play(own, [*spare, *own]) == told
    if what == "held":
        assert play([], own) == told  # nothing of the class is held


def test_the_names_of_a_model_are_learned():
    healthy = TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer()
    result = learn(healthy.steps(20).build())
    assert claims(result, "membership", role="buffer", model="Net")
    plain = TraceBuilder().process().model("Net", MLP_BN).optimizer().steps(3)
    found = report_of(result.invariants, plain.build()).findings
    about = [f for f in found if f.code == "membership"]
    assert set(about[0].variables) == {f"Net.{name}" for name in BN_BUFFERS}
    assert about[0].first_step == 0


def test_where_the_frozen_part_changes_in_training_nothing_is_claimed():
    trace = run(10).freeze(*BODY, frozen=False).steps(10)
    found = values_of(learn(trace.build()), "membership", "is")
    assert found
    assert not {"frozen", "trainable"} & set(found)


def test_two_optimizers_that_step_a_parameter_are_told_unless_one_is_within_the_other():
    claim = {**BASE, "is": "once", "under": "Net"}
    assert broken(decide("membership", claim, run(3).build())) == []
    two = TraceBuilder().process().model("Net", MLP).optimizer().optimizer(names=HEAD)
    found = broken(decide("membership", claim, two.steps(1).build()))
    assert found == [(0, Symptom.APPLIED_TWICE, name) for name in sorted(HEAD)]
    events = two.build()
    updates = [e for e in events if getattr(e, "family", "") == Families.OPTIMIZER_STEP]
    nested = [e.replace(parent=updates[1].span) if e is updates[0] else e for e in events]
    assert broken(decide("membership", claim, nested)) == []


def test_a_frozen_parameter_that_momentum_moves_is_told_in_any_program():
    claim = {"is": "unmoved"}
    trace = run(3, frozen=()).freeze(*BODY)
    trace.begin_step().zero_grad().forward("Net").backward(HEAD).optimizer_step()
    for name in BODY:
        trace.write(name)
    found = broken(decide("membership", claim, trace.build()))
    assert found == [(3, Symptom.SILENT_WRITE, name) for name in sorted(BODY)]
    assert broken(decide("membership", claim, run(5).build())) == []


def test_what_a_checkpoint_brings_is_no_write_to_what_is_frozen():
    """Of the step after, if the load comes behind an update; and no more than that."""
    claims = {"is": "unmoved"}, {**BASE, "is": "still", "under": "Net.fc1"}
    for claim in claims:
        for first_written, found in ((1, []), (2, [(2, Symptom.SILENT_WRITE, BODY[0])])):
            trace = run(1).load("Net")
            for step in (1, 2):
                trace.begin_step().zero_grad().forward("Net").backward(HEAD)
                trace.optimizer_step(skip=set(BODY))
                if step == first_written:
                    trace.write(BODY[0])
            assert broken(decide("membership", claim, trace.build())) == found


def test_an_embedding_that_is_not_sparse_any_more_is_told():
    def run(sparse: bool, steps: int = 9) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", {"users.weight": "E"}).optimizer()
        for _ in range(steps):
            trace.begin_step().zero_grad()
            api = "torch.nn.functional.embedding"
            trace.call(api, span=trace.new_span(), parent=7777, args={"sparse": sparse})
            module = "torch.nn.modules.sparse.Embedding.forward"
            trace.call(module, span=7777, family=Families.MODULE, module="Net.users")
            trace.backward(["Net.users.weight"]).optimizer_step()
        return trace

    result = learn(run(sparse=True).build())
    assert claims(result, "membership", **{"is": "sparse"})
    claim = {**BASE, "is": "sparse", "under": "Net"}
    assert broken(decide("membership", claim, run(sparse=True).build())) == []
    assert broken(decide("membership", claim, run(sparse=False, steps=1).build())) == [
        (0, Symptom.WRONG_VALUE, "Net.users.weight")
    ]


def test_another_program_is_not_judged():
    invariants = [
        i for i in learn(run().build()).invariants if i.hypothesis.relation == "membership"
    ]
    trace = TraceBuilder().process(**OTHER_SCRIPT).model("Net", MLP).optimizer().steps(3)
    verdicts = report_of(invariants, trace.build()).verdicts
    by_id = {i.id: verdicts[i.id] for i in invariants if "program" in i.hypothesis.params}
    assert set(by_id.values()) == {Verdict.NOT_TRIGGERED}


def test_unfinished_steps_prove_nothing():
    claim = {**BASE, "is": "trainable", "under": "Net.fc1"}
    trace = TraceBuilder().process().model("Net", MLP, frozen=BODY).optimizer()
    trace.begin_step().zero_grad().forward("Net")
    assert decide("membership", claim, trace.build(last_complete=False)) == []


def test_what_the_view_must_hold():
    relation = RELATIONS["membership"]
    still = relation.needs(Hypothesis(relation="membership", params={**BASE, "is": "still"}))
    assert still.scans("parameter@step")
    plain = relation.needs(Hypothesis(relation="membership", params={**BASE, "is": "frozen"}))
    assert plain.states == {"parameter@new"}  # flags are recorded in every view
    held = relation.needs(Hypothesis(relation="membership", params={**BASE, "is": "held"}))
    assert held.scans("gradient@backward")


@pytest.mark.parametrize(
    "params",
    [{}, {"is": "held"}, {"is": "x", "under": "Net"}, {"model": "Net", "role": "gradient"}],
)
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("membership", params, [])


def test_the_run_is_recorded_as_the_tests_assume():
    assert any(isinstance(e, StateEvent) and not e.requires_grad for e in run(1).build())


def cast(trace: TraceBuilder, *names: str, dtype: str = "bfloat16") -> list[Event]:
    """The events, with these variables in another dtype from the beginning."""

    def other(event: Event) -> Event:
        if not isinstance(event, StateEvent) or event.name not in names or event.summary is None:
            return event
        return event.replace(summary=event.summary.replace(dtype=dtype))

    return [other(event) for event in trace.build()]


def normed() -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer()


STATISTIC = "Net.bn.running_var"


def test_a_dtype_is_learned_by_place_and_a_cast_buffer_is_told(golden: Golden):
    counter = "Net.bn.num_batches_tracked"
    result = learn(cast(normed().steps(20), counter, dtype="int64"))
    dtypes = golden.each(claims(result, "membership", dtype="float32", under="Net"))
    assert set(values_of(dtypes, "membership", "role")) == {"buffer", "parameter"}
    cast_too = cast(normed().steps(3), STATISTIC)
    (finding,) = report_of(result.invariants, cast_too).findings
    assert (finding.code, finding.severity, finding.first_step) == ("membership", "warning", 0)
    assert finding.variables == (STATISTIC,)
    golden(finding)
    assert not report_of(result.invariants, normed().steps(9).build()).findings


def test_a_model_that_is_cast_as_a_whole_is_one_finding():
    result = learn(normed().steps(20).build())
    names = [f"Net.{name}" for name in (*MLP_BN, *BN_BUFFERS)]
    report = report_of(result.invariants, cast(normed().steps(3), *names))
    assert [finding.code for finding in report.findings] == ["membership"]


def test_of_a_model_that_is_cast_while_it_trains_no_dtype_is_claimed():
    events = normed().steps(20).build()
    cut = next(i for i, e in enumerate(events) if e.kind == "step" and e.step == 9)
    later = cast(normed().steps(20), STATISTIC)[cut:]
    assert not claims(learn([*events[:cut], *later]), "membership", **{"is": "dtype"})


def test_a_claim_about_a_dtype_that_lacks_words_is_refused():
    with pytest.raises(ValueError, match="nothing is known of"):
        decide("membership", {**BASE, "is": "dtype", "under": "Net", "dtype": "float32"}, [])
