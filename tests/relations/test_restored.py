"""restored: what is loaded back before training goes on."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.learning import broken, decide, learn, report_of, texts
from traincheck.schema.events import CheckpointEvent, Families
from traincheck.schema.findings import Symptom

BASE = {"program": "train.py", "target": "Net"}


def load(trace: TraceBuilder, target: str, **fields: object) -> TraceBuilder:
    trace._add(CheckpointEvent, op="load_state_dict", target=target, **fields)
    return trace


def resumed(*, entries: int = 4, optimizer: bool = True, scheduler: bool = True) -> TraceBuilder:
    """A run that is resumed in step 3."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    made = "torch.optim.lr_scheduler.LinearLR.__init__"
    trace.call(made, family=Families.SCHEDULER_CREATED, owner="opt0").steps(3)
    load(trace, "Net", missing=[], unexpected=[], matched=entries, entries=entries)
    if optimizer:
        load(trace, "torch.optim.adam.Adam", owner="opt0", entries=4)
    if scheduler:
        load(trace, "torch.optim.lr_scheduler.LinearLR")
    return trace


def test_what_a_resumption_restores_is_learned():
    assert texts(learn(resumed().steps(9).build()), "restored") == [
        "In train.py, the state that is loaded into Net holds 4 values.",
        "In train.py, whenever Net is loaded and training goes on, the state of a scheduler is "
        "loaded too.",
        "In train.py, whenever Net is loaded and training goes on, the state of an optimizer is "
        "loaded too.",
    ]


@pytest.mark.parametrize(("missing", "word"), [("optimizer", "Adam"), ("scheduler", "LinearLR")])
def test_state_that_is_not_loaded_is_told_in_the_first_step_after(missing, word):
    invariants = learn(resumed().steps(9).build()).invariants
    found = report_of(invariants, resumed(**{missing: False}).steps(2).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("restored", 3)]
    assert word in found[0].message
    assert not report_of(invariants, resumed().steps(2).build()).findings


def test_a_value_less_is_told():
    claim = {**BASE, "entries": 4}
    assert broken(decide("restored", claim, resumed().steps(1).build())) == []
    assert broken(decide("restored", claim, resumed(entries=3).steps(1).build())) == [
        (3, Symptom.NOT_RESTORED, "Net")
    ]


def test_what_is_loaded_for_a_last_evaluation_says_nothing():
    claim = {**BASE, "also": "optimizer"}
    assert decide("restored", claim, resumed(optimizer=False).evaluate().build()) == []


def test_a_run_that_is_not_resumed_says_nothing():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(9)
    assert texts(learn(trace.build()), "restored") == []
    assert decide("restored", {**BASE, "entries": 4}, trace.build()) == []


@pytest.mark.parametrize("params", [{}, {"target": "Net"}, {"also": "optimizer"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("restored", params, [])
