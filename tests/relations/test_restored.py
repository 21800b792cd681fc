"""restored: what is loaded back before training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families

BASE = {"program": "train.py"}
LOADED = {**BASE, "what": "loads", "of": "Net", "value": 4}
OPTIMIZER = {**BASE, "what": "also", "of": "Net optimizer", "value": True}


def resumed(
    *, entries: int = 4, optimizer: bool = True, scheduler: bool = True, empty: bool = False
) -> TraceBuilder:
    """A run that is resumed in step 3. empty: an optimizer is given the nothing that it holds."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    made = "torch.optim.lr_scheduler.LinearLR.__init__"
    trace.call(made, family=Families.SCHEDULER_CREATED, owner="opt0").steps(3)
    trace.load("Net", missing=[], unexpected=[], matched=entries, entries=4)
    if empty:
        trace.load("torch.optim.adam.Adam", owner="opt0", entries=0)
    if optimizer:
        trace.load("torch.optim.adam.Adam", owner="opt0", entries=4)
    if scheduler:
        trace.load("torch.optim.lr_scheduler.LinearLR")
    return trace


def test_what_a_resumption_restores_is_learned(golden: Golden):
    found = golden.each(claims(learn(resumed().steps(9).build()), "restored"))
    assert {(i.hypothesis.params["what"], i.hypothesis.params["of"]) for i in found} == {
        ("loads", "Net"),
        ("also", "Net scheduler"),
        ("also", "Net optimizer"),
        ("copies", ""),
    }
    assert len(found) == 4


@pytest.mark.parametrize(("missing", "word"), [("optimizer", "Adam"), ("scheduler", "LinearLR")])
def test_state_that_is_not_loaded_is_told_in_the_first_step_after(missing, word, golden: Golden):
    invariants = learn(resumed().steps(9).build()).invariants
    lacking = resumed(**{missing: False}, empty=True)
    found = report_of(invariants, lacking.steps(2).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("restored", 3)]
    assert mentions(golden(found[0]).message, word)
    assert not report_of(invariants, resumed().steps(2).build()).findings


def swapped(*loads: int) -> list[Event]:
    """A run in which an average is evaluated behind each epoch of two updates."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for times in loads:
        trace.steps(2)
        for _ in range(times):
            trace.load("Net", missing=[], unexpected=[], matched=4, entries=4)
    return trace.build()


def test_weights_that_are_swapped_in_and_not_back(golden: Golden):
    learned = learn(swapped(2, 2, 2, 0), swapped(2, 2, 2, 0))
    (held,) = claims(learned, "restored", what="back")
    for healthy in (swapped(2, 2, 1), swapped(4, 0, 2), swapped(0, 0)):
        assert report_of([held], healthy).findings == []
    (finding,) = report_of([held], swapped(2, 1, 1, 0)).findings
    assert (finding.first_step, finding.subject.module, finding.violations) == (4, "Net", 2)
    golden(finding)
    for others in (swapped(2, 1, 2, 0), resumed().steps(9).build()):
        assert not claims(learn(others), "restored", what="back")


def test_names_that_do_not_match_are_the_cause_of_what_does_not_come_back(golden: Golden):
    held = claims(learn(resumed().steps(9).build()), "restored", what="loads")
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(3)
    trace.load("Net", missing=["a.x", "a.y"], unexpected=["b.x"], matched=1, entries=2).steps(1)
    (finding,) = report_of(held, trace.build()).findings
    golden(finding)
    assert mentions(finding, 1, "a.x", "a.y", "b.x", "strict=False")


def test_a_value_less_is_told():
    assert broken(decide("restored", LOADED, resumed().steps(1).build())) == []
    assert broken(decide("restored", LOADED, resumed(entries=3).steps(1).build())) == [
        (2, Symptom.NOT_RESTORED, "Net")
    ]


def test_what_is_loaded_for_a_last_evaluation_says_nothing():
    assert decide("restored", OPTIMIZER, resumed(optimizer=False).evaluate().build()) == []


def test_a_run_that_is_not_resumed_says_nothing():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(9)
    assert not claims(learn(trace.build()), "restored")
    assert decide("restored", LOADED, trace.build()) == []


def test_a_state_that_is_no_copy_is_told_in_any_program():
    claim = {"what": "copies", "of": "", "value": True}
    other = TraceBuilder().process(argv0="other.py").model("Net", MLP).optimizer().steps(2)
    other.load("Net", missing=[], unexpected=[], matched=4, entries=4, shared=4)
    assert broken(decide("restored", claim, other.build())) == [(1, Symptom.NOT_RESTORED, "Net")]
    assert broken(decide("restored", claim, resumed().build())) == []


def saved(trace: TraceBuilder, **parts: dict[str, object]) -> TraceBuilder:
    path = f"/tmp/epoch{len(trace.events)}.pt"
    trace.add(CheckpointEvent, op="save", target="builtins.dict", path=path, parts=parts)
    return trace


MODEL = {"kind": "model", "entries": 4}


def test_what_files_hold_is_learned_and_what_they_lack_is_told(golden: Golden):
    def run(**parts: dict[str, object]) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", MLP).optimizer()
        for _ in range(4):
            saved(trace.steps(2), model=MODEL, **parts)
        return trace

    held = {"kind": "optimizer", "params": 4, "entries": 4}
    result = learn(run(optimizer=held).build())
    learned = golden.each(claims(result, "restored"))
    assert [(i.hypothesis.params["what"], i.hypothesis.params["of"]) for i in learned] == [
        ("file", "epoch#.pt"),
        ("part", "model of epoch#.pt"),
        ("part", "optimizer of epoch#.pt"),
    ]
    assert not report_of(result.invariants, run(optimizer=held).build()).findings
    found = report_of(result.invariants, run(optimizer={**held, "params": 2}).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("restored", 1)]
    assert mentions(golden(found[0]), 2)
    found = report_of(result.invariants, run().build()).findings
    golden(found[0])


STATES = {
    "model": MODEL,
    "optimizer": {"kind": "optimizer", "params": 4, "entries": 4},
    "scheduler": {"kind": "scheduler"},
    "scaler": {"kind": "scaler"},
    "rng": {"kind": "rng"},
}


def saving(
    names: Mapping[str, str], *, scheduler: str | None = "StepLR", scaler: bool = True
) -> list[Event]:
    """Each two steps a file is saved. names: those of its parts, and of which kind they are."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    if scheduler:
        api = f"torch.optim.lr_scheduler.{scheduler}.__init__"
        trace.call(api, family=Families.SCHEDULER_CREATED, owner="opt0")
    for _ in range(4):
        for _ in range(2):
            trace.step()
            trace.call(Families.SCALER_STEP, args={"enabled": scaler}, owner="opt0")
        saved(trace, **{name: STATES[kind] for name, kind in names.items()})
    return trace.build()


ALL = {kind: kind for kind in STATES}


def without(*kinds: str, **more: str) -> dict[str, str]:
    return {**{kind: kind for kind in STATES if kind not in kinds}, **more}


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (without("optimizer"), ["optimizer"]),
        (without("optimizer", ema="model"), ["optimizer"]),
        (without("optimizer", "scheduler"), ["optimizer", "scheduler"]),
        (without("scaler"), ["scaler"]),
        (without("rng"), ["rng"]),
        (without("model"), ["model"]),
    ],
)
def test_parts_that_a_file_lacks_are_told(names, missing, golden: Golden):
    (claim,) = claims(learn(saving(ALL)), "restored", what="file")
    (finding,) = report_of([claim], saving(names)).findings
    assert [kind for kind in STATES if mentions(finding.observed, kind)] == missing
    golden(finding)


@pytest.mark.parametrize(
    ("names", "program"),
    [
        (without(ema="model", more="scaler"), {}),
        (without("model", "optimizer", net="model", optim="optimizer"), {}),
        (without("rng", states="rng"), {}),
        (without("scheduler"), {"scheduler": None}),
        (without("scaler"), {"scaler": False}),
    ],
)
def test_a_file_may_hold_more_other_names_and_nothing_that_is_not_there(names, program):
    (claim,) = claims(learn(saving(ALL)), "restored", what="file")
    assert not report_of([claim], saving(names, **program)).findings


def test_claims_on_files_that_older_versions_wrote_tell_no_kinds():
    older = {**BASE, "what": "file", "of": "epoch#.pt", "value": ["model", "optimizer"]}
    assert broken(decide("restored", older, saving(ALL))) == []
    assert len(broken(decide("restored", older, saving(without("optimizer"))))) == 4


def test_each_of_two_models_that_are_trained_is_to_be_saved(golden: Golden):
    def run(models: Sequence[str], **parts: dict[str, object]) -> list[Event]:
        trace = TraceBuilder().process()
        for model in models:
            trace.model(model, MLP)
        trace.optimizer()
        for _ in range(4):
            saved(trace.steps(2), **parts)
        return trace.build()

    both = {"net": MODEL, "critic": MODEL}
    learned = learn(run(["Net", "Critic"], **both)).invariants
    (claim,) = claims(learned, "restored", what="file")
    (finding,) = report_of([claim], run(["Net", "Critic"], net=MODEL)).findings
    golden(finding)
    # One model of both, of which either part was saved
    (finding,) = report_of([claim], run(["Net", "Net#2"], net=MODEL)).findings
    whole = {"kind": "model", "entries": 8}
    for quiet in (run(["Net"], net=MODEL), run(["Gan"], net=whole)):
        assert not report_of([claim], quiet).findings


DEEPER = {**MLP, "fc3.weight": "Linear", "fc3.bias": "Linear"}


def sized(
    model: int,
    *optimizers: Sequence[str],
    parameters: Mapping[str, str] = MLP,
    buffers: Mapping[str, str] | None = None,
    saves: int = 4,
) -> list[Event]:
    """The model, and an optimizer, are saved with so many values. optimizers: what they hold."""
    trace = TraceBuilder().process().model("Net", parameters, buffers=buffers)
    for names in optimizers or [list(parameters)]:
        trace.optimizer(names=[f"Net.{name}" for name in names])
    for _ in range(4):
        optimizer = {"kind": "optimizer", "params": saves, "entries": saves}
        saved(trace.steps(2), model={**MODEL, "entries": model}, optimizer=optimizer)
    return trace.build()


def test_a_part_is_as_large_as_what_it_is_of_whatever_the_reference_has(golden: Golden):
    parts = claims(learn(sized(4)), "restored", what="part")
    norm, mask = {**MLP_BN}, {"mask": "Net"}
    for healthy in (
        sized(6, parameters=DEEPER, saves=6),
        sized(4, ["fc1.weight", "fc2.weight"], ["fc1.bias", "fc2.bias"], saves=2),
        sized(9, parameters=norm, buffers=BN_BUFFERS, saves=6),
        sized(4, buffers=mask),
        sized(5, buffers=mask),
        sized(12),  # of modules that are shared, or were never used
    ):
        assert not report_of(parts, healthy).findings
    cut = [
        sized(4, parameters=DEEPER, saves=6),
        sized(6, parameters=norm, buffers=BN_BUFFERS, saves=6),
        sized(4, saves=2),
        sized(4, saves=8),
    ]
    found = [finding for run in cut for finding in report_of(parts, run).findings]
    for wrong, (part, values) in zip(
        golden.each(found),
        [("model", 4), ("model", 6), ("optimizer", 2), ("optimizer", 8)],
        strict=True,
    ):
        assert wrong.subject.module == f"{part} of epoch#.pt"
        assert mentions(wrong.observed, values)


def test_of_a_part_of_a_model_that_the_reference_saves_no_size_is_claimed():
    assert not claims(learn(sized(2)), "restored", what="part", of="model of epoch#.pt")
    older = {**BASE, "what": "part", "of": "model of epoch#.pt", "value": 4}
    assert broken(decide("restored", older, sized(6, parameters=DEEPER))) == []


@pytest.mark.parametrize("params", [{}, {"what": "loads"}, {"what": "x", "of": "Net", "value": 1}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("restored", params, [])


def averaged(*loaded: str) -> list:
    """Weights are loaded again and again after updates: an average of them, or the first ones."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(2)
    for content in loaded:
        trace.load("Net", matched=4, entries=4, values={"Net.fc1.weight": content}).steps(2)
    return [
        event.replace(summary=event.summary.replace(fingerprint="xxh3-128:first"))
        if event.kind == "state" and (event.name, event.change) == ("Net.fc1.weight", "new")
        else event
        for event in trace.build()
    ]


def test_weights_that_become_what_they_were_before_training():
    reference = averaged(*(f"xxh3-128:{number}" for number in range(5)))
    (claim,) = claims(learn(reference), "restored", what="trained")
    assert report_of([claim], averaged("xxh3-128:7", "xxh3-128:8")).findings == []
    (finding,) = report_of([claim], averaged("xxh3-128:7", "xxh3-128:first")).findings
    assert (finding.first_step, finding.subject.module) == (3, "Net")
    again = learn(averaged(*["xxh3-128:first", "xxh3-128:2"] * 3)).invariants
    assert not claims(again, "restored", what="trained")


COUNTED = {"program": "train.py", "what": "counts", "of": "epoch of last.pt", "value": True}


def counting(*epochs: int, **others: int) -> TraceBuilder:
    """A file is saved with each of these numbers, after two steps each."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for epoch in epochs:
        trace.steps(2)
        numbers = {"epoch": epoch, **others}
        trace.add(CheckpointEvent, op="save", path="/tmp/last.pt", numbers=numbers)
    return trace


def test_an_epoch_that_begins_anew_is_told_at_its_first_step(golden: Golden):
    result = learn(counting(0, 1, 2, 3, 4).build())
    assert [i.hypothesis.params for i in golden.each(claims(result, "restored"))] == [COUNTED]
    (finding,) = report_of(result.invariants, counting(0, 1, 2, 0, 1).build()).findings
    assert (finding.code, finding.first_step, finding.violations) == ("restored", 6, 1)
    for other in (counting(0, 0, 1, 1), counting(3, 6, 9), counting(7)):
        assert not report_of(result.invariants, other.build()).findings


def test_a_number_that_is_no_count_of_epochs_or_steps_says_nothing():
    learned = learn(counting(*range(9), best_epoch=3, step=5, seed=0).build())
    assert [i.hypothesis.params for i in claims(learned, "restored", what="counts")] == [COUNTED]
    assert decide("restored", {**COUNTED, "of": "seed of last.pt"}, counting(1, 2).build()) == []


def evaluated(*contents: str, wrote: int | None = None) -> list[Event]:
    """A model is evaluated with this content after each two steps; ``wrote``: it changes then."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for index, content in enumerate(contents):
        trace.steps(2).begin_step()
        values = {f"Net.{name}": content for name in MLP}
        trace.mark("evaluated", model="Net", values=values)
        if index == wrote:
            trace.mark("evaluation wrote", model="Net", names=["Net.fc2.weight"], parameters=1)
        trace.zero_grad().forward("Net").backward().optimizer_step()
    return [
        event.replace(summary=event.summary.replace(fingerprint="first"))
        if event.kind == "state" and event.role == "parameter" and event.change == "new"
        else event
        for event in trace.build()
    ]


def test_weights_that_evaluation_finds_as_they_began_or_writes_are_told(golden: Golden):
    result = learn(evaluated("a", "b", "c"))
    found = golden.each(claims(result, "restored"))
    assert values_of(found, "restored", "what") == ["evaluated", "left"]
    (stale,) = report_of(result.invariants, evaluated("first", "first", "first")).findings
    assert (stale.code, stale.first_step, stale.subject.module) == ("restored", 5, "Net")
    (written,) = report_of(result.invariants, evaluated("a", "b", wrote=1)).findings
    assert (written.first_step, written.subject.variable) == (5, "Net.fc2.weight")
    # The first updates may be by a rate of zero
    assert not report_of(result.invariants, evaluated("first", "a", "b")).findings


def test_a_model_is_not_updated_by_the_optimizer_of_another():
    def run(*contents: str, begins: int = 0) -> list[Event]:
        trace = TraceBuilder().process().model("Encoder", MLP).model("Head", MLP)
        for model in ("Encoder", "Head"):
            trace.optimizer(names=[f"{model}.{name}" for name in MLP])
        for index, content in enumerate(contents):
            trace.begin_step().zero_grad().forward().backward().optimizer_step()
            if index >= begins:
                trace.optimizer_step("opt1")
            values = {f"Head.{name}": content for name in MLP}
            trace.mark("evaluated", model="Head", values=values)
        return [
            event.replace(summary=event.summary.replace(fingerprint="first"))
            if event.kind == "state" and event.role == "parameter" and event.change == "new"
            else event
            for event in trace.build()
        ]

    learned = learn(run("a", "b", "c", "d")).invariants
    (claim,) = claims(learned, "restored", what="evaluated")
    assert not report_of([claim], run("first", "first", "first", "d", begins=3)).findings
    (stale,) = report_of([claim], run("first", "first", "first", "first", begins=1)).findings
    assert (stale.first_step, stale.subject.module) == (2, "Head")
