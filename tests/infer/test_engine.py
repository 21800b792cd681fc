"""Inference: what is kept, what is dropped and why, from one run and from several."""

from __future__ import annotations

import pytest

from tests.builders import ADAM, MLP, SGD, TraceBuilder, healthy_run
from tests.learning import Recorded, learn, report_of, texts
from traincheck.errors import UsageError
from traincheck.infer.engine import REASONS, Limits, Run, infer
from traincheck.infer.replay_views import in_selective_view
from traincheck.infer.select import min_examples
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Hypothesis, Needs, key_of
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import invariant_json
from traincheck.schema.marks import Marks

UPDATES = "In train.py, in every training step, every parameter changes."
MODEL = "Net"


def net(**options) -> TraceBuilder:
    return TraceBuilder().process().model(MODEL, MLP, **options).optimizer().train()


def as_bytes(result) -> str:
    return repr([invariant_json(i) for i in result.invariants]) + repr(result.dropped)


def test_a_healthy_run_teaches_what_a_practitioner_would_say():
    found = texts(learn(healthy_run(20)))
    assert {
        UPDATES,
        "In every training step, zero_grad is called.",
        "In train.py, in every training step, Optimizer.step is called.",
        "Optimizer.step is called at least once in 8 training steps.",
        "In every training step, the model runs in training mode, if no parameter of the model is "
        "frozen.",
        "After Optimizer.step, zero_grad comes before the next backward.",
        "During every Optimizer.step, every parameter it holds changes, "
        "if has_gradient is true and requires_grad is true.",
        "In train.py, during every Optimizer.step, every parameter it holds changes.",
    } <= set(found)
    assert len(found) < 60


@pytest.mark.parametrize(
    "healthy",
    [
        healthy_run(12, optimizer=SGD),
        healthy_run(12, style="B"),
        healthy_run(12, accumulate=4),
        healthy_run(12, scheduler=True),
        healthy_run(12, eval_every=1),
        healthy_run(12, set_to_none=False),
        net().steps(2).skipped_steps(3).steps(4).build(),
        healthy_run(1),
    ],
    ids=lambda run: str(len(run)),
)
def test_other_healthy_runs_break_nothing(healthy):
    report = report_of(learn(healthy_run(20)).invariants, healthy)
    assert report.findings == []


@pytest.mark.parametrize("fault", ["zero_grad", "optimizer_step", "backward"])
def test_broken_runs_are_found(fault):
    invariants = learn(healthy_run(20)).invariants
    report = report_of(invariants, healthy_run(6, omit={fault}))
    assert report.count(Verdict.VIOLATED) >= 2


def test_what_one_of_several_runs_contradicts_is_dropped():
    good = net().steps(12).build()
    unlucky = net().steps(12, not_updated={"Net.fc1.weight", "Net.fc1.bias"}).build()
    assert UPDATES in texts(learn(good))
    both = learn(good, unlucky)
    assert UPDATES not in texts(both)
    (dropped,) = [d for d in both.dropped if f"In train.py, i{d.text[1:]}." == UPDATES]
    assert dropped.reason == "no short precondition excludes the counterexamples"
    assert (dropped.positive, dropped.negative) == (72, 24)


def test_what_one_run_never_shows_is_kept():
    scheduled = net().steps(12, scheduler=True).build()
    plain = net().steps(12).build()
    wanted = "In train.py, between two calls of LRScheduler.step there is Optimizer.step."
    for result in (learn(scheduled, plain), learn(plain, scheduled)):
        (invariant,) = [i for i in result.invariants if i.text == wanted]
        assert invariant.support.runs == 1
        (updates,) = [i for i in result.invariants if i.text == UPDATES]
        assert (updates.support.runs, updates.support.steps) == (2, 24)


def test_few_examples_are_no_evidence():
    few = learn(net().steps(3).build())
    assert "In every training step, zero_grad is called." not in texts(few)
    assert {d.reason for d in few.dropped if "zero_grad is called" in d.text} == {
        "too few examples"
    }
    lax = learn(net().steps(3).build(), limits=Limits(confidence=0.5, examples=1))
    assert "In every training step, zero_grad is called." in texts(lax)


def test_confidence_and_examples_go_together():
    assert min_examples(0.99) == 7
    assert min_examples(0.5) == 1
    strict = learn(net().steps(6).build(), limits=Limits(confidence=0.99, examples=1))
    dropped = {d.reason for d in strict.dropped if "zero_grad is called" in d.text}
    assert dropped == {"confidence too low"}


def test_every_dropped_hypothesis_has_a_reason_of_the_list():
    result = learn(healthy_run(20, optimizer=ADAM))
    assert {d.reason for d in result.dropped} <= set(REASONS)
    kept = {key_of(i.hypothesis) for i in result.invariants}
    dropped = [key_of(d.hypothesis) for d in result.dropped]
    assert len(kept) + len(dropped) == len(kept | set(dropped)) == result.hypotheses


def test_order_of_runs_and_jobs_change_no_byte():
    runs = [
        Run(name="a", source=Recorded(net().steps(9).build())),
        Run(name="b", source=Recorded(net().steps(9, style="B", eval_every=2).build())),
    ]
    one = as_bytes(infer(runs))
    assert as_bytes(infer(runs[::-1])) == one
    for jobs in (2, 5):
        assert as_bytes(infer(runs, jobs=jobs)) == one


def test_the_id_of_an_invariant_is_that_of_its_claim():
    one = {i.text: i.id for i in learn(healthy_run(20)).invariants}
    other = {i.text: i.id for i in learn(healthy_run(33)).invariants}
    assert one == other
    assert len(set(one.values())) == len(one)


def test_one_relation_alone():
    found = learn(healthy_run(20), relations={"order": RELATIONS["order"]})
    assert {i.hypothesis.relation for i in found.invariants} == {"order"}


def test_progress_is_told():
    told = []
    learn(healthy_run(8), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]


def test_no_run_is_an_error():
    with pytest.raises(UsageError, match="no run"):
        infer([])


def test_steps_and_events_are_counted():
    events = healthy_run(8)
    result = learn(events, events)
    assert (result.steps, result.events, list(result.runs)) == (
        16,
        2 * len(events),
        ["run0", "run1"],
    )


class Fickle(RelationBase, ProposerBase):
    """Claims that inner modules are called, and asks for the family: true in full only.

    In a selective view only the outermost are recorded for their family.
    """

    name = "fickle"

    def proposer(self):
        return self

    def observe(self, event):
        return ()

    def finish(self):
        return ()

    def hypotheses(self):
        yield Hypothesis(relation="fickle", params={})

    def decider(self, claims):
        return FickleDecider()

    def needs(self, claim):
        return Needs(kinds=frozenset({"step"}), calls=frozenset({"torch.nn.Module.forward"}))

    def text(self, claim):
        return "Inner modules are called in the step"

    def chance(self, claim, positive):
        return 0.5**positive

    def implies(self, claim, other):
        return False

    def info(self, claim, check_id, text):
        return RELATIONS["order"].info(claim, check_id, text)


class FickleDecider:
    def __init__(self):
        self.seen = False

    def observe(self, event):
        from traincheck.schema.findings import Example

        if event.kind == "call":
            self.seen |= not event.root
        if event.kind != "step":
            return ()
        seen, self.seen = self.seen, False
        return [(0, Example(holds=seen, context={}))]

    def finish(self):
        return ()


def test_what_the_view_that_is_checked_does_not_show_is_dropped():
    result = learn(healthy_run(20), relations={"fickle": Fickle()})
    assert result.invariants == []
    (dropped,) = result.dropped
    assert dropped.reason == "it did not stand the replay"
    assert dropped.detail == "broken in the selective view"


def test_a_selective_view_of_a_full_trace():
    needs = Needs(
        calls=frozenset({"torch.optim.Optimizer.step"}), states=frozenset({"parameter@step"})
    )
    events = healthy_run(3)
    kept = [e for e in (in_selective_view(event, needs) for event in events) if e is not None]
    assert {e.family for e in kept if e.kind == "call"} == {"torch.optim.Optimizer.step"}
    assert {(e.role, e.change) for e in kept if e.kind == "state"} == {
        ("parameter", "new"),
        ("parameter", "content"),
        ("optimizer_state", "new"),
    }
    assert [e for e in kept if e.kind == "step"] == [e for e in events if e.kind == "step"]
    assert kept[0].data["recorded"]["states"] == ["parameter@step"]
    assert not [e for e in kept if e.kind in ("optimizer", "batch")]


def test_a_trace_that_holds_a_part_is_not_taken_for_one_that_holds_all_that_is_asked_for() -> None:
    (process,) = [e for e in healthy_run(1) if e.kind == "mark" and e.text == Marks.PROCESS]
    needs = Needs(states=frozenset({"buffer@forward"}))
    assert in_selective_view(process, needs).data["recorded"]["states"] == ["buffer@forward"]
    own = {"calls": [], "states": ["parameter@step"], "kinds": ["step"], "exact": False}
    partial = process.replace(data={**process.data, "recorded": own})
    assert in_selective_view(partial, needs) == partial
