"""restored: what is loaded back before training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN, TraceBuilder
from tests.learning import broken, decide, learn, report_of, texts
from traincheck.schema.apis import Families
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Symptom

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


def test_what_a_resumption_restores_is_learned():
    assert texts(learn(resumed().steps(9).build()), "restored") == [
        "Every load of a model copies values, never the model's own tensors.",
        "In train.py, every load of Net restores 4 values.",
        "In train.py, whenever Net is loaded and training continues, the state of a scheduler is "
        "loaded too.",
        "In train.py, whenever Net is loaded and training continues, the state of an optimizer is "
        "loaded too.",
    ]


@pytest.mark.parametrize(("missing", "word"), [("optimizer", "Adam"), ("scheduler", "LinearLR")])
def test_state_that_is_not_loaded_is_told_in_the_first_step_after(missing, word):
    invariants = learn(resumed().steps(9).build()).invariants
    lacking = resumed(**{missing: False}, empty=True)
    found = report_of(invariants, lacking.steps(2).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("restored", 3)]
    assert word in found[0].message
    assert not report_of(invariants, resumed().steps(2).build()).findings


def swapped(*loads: int) -> list[Event]:
    """A run in which an average is evaluated behind each epoch of two updates."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for times in loads:
        trace.steps(2)
        for _ in range(times):
            trace.load("Net", missing=[], unexpected=[], matched=4, entries=4)
    return trace.build()


def test_weights_that_are_swapped_in_and_not_back():
    learned = learn(swapped(2, 2, 2, 0), swapped(2, 2, 2, 0))
    (held,) = [i for i in learned.invariants if "swapped back" in i.text]
    for healthy in (swapped(2, 2, 1), swapped(4, 0, 2), swapped(0, 0)):
        assert report_of([held], healthy).findings == []
    (finding,) = report_of([held], swapped(2, 1, 1, 0)).findings
    assert (finding.first_step, finding.subject.module, finding.violations) == (4, "Net", 2)
    assert "swapped back" in finding.likely_cause
    for others in (swapped(2, 1, 2, 0), resumed().steps(9).build()):
        assert not any("swapped back" in text for text in texts(learn(others), "restored"))


def test_names_that_do_not_match_are_the_cause_of_what_does_not_come_back():
    held = [
        i for i in learn(resumed().steps(9).build()).invariants if "every load of Net" in i.text
    ]
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(3)
    trace.load("Net", missing=["a.x", "a.y"], unexpected=["b.x"], matched=1, entries=2).steps(1)
    (finding,) = report_of(held, trace.build()).findings
    assert finding.observed == "1 value restored, with a.x, a.y missing, and b.x given"
    assert "strict=False" in finding.likely_cause
    assert "missing and unexpected keys" in finding.fix


def test_a_value_less_is_told():
    assert broken(decide("restored", LOADED, resumed().steps(1).build())) == []
    assert broken(decide("restored", LOADED, resumed(entries=3).steps(1).build())) == [
        (2, Symptom.NOT_RESTORED, "Net")
    ]


def test_what_is_loaded_for_a_last_evaluation_says_nothing():
    assert decide("restored", OPTIMIZER, resumed(optimizer=False).evaluate().build()) == []


def test_a_run_that_is_not_resumed_says_nothing():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(9)
    assert texts(learn(trace.build()), "restored") == []
    assert decide("restored", LOADED, trace.build()) == []


def test_a_state_that_is_no_copy_is_told_in_any_program():
    claim = {"what": "copies", "of": "", "value": True}
    other = TraceBuilder().process(argv0="other.py").model("Net", MLP).optimizer().steps(2)
    other.load("Net", missing=[], unexpected=[], matched=4, entries=4, shared=4)
    assert broken(decide("restored", claim, other.build())) == [(1, Symptom.NOT_RESTORED, "Net")]
    assert broken(decide("restored", claim, resumed().build())) == []


def saved(trace: TraceBuilder, **parts: dict[str, object]) -> TraceBuilder:
    path = f"/tmp/epoch{len(trace._events)}.pt"
    trace._add(CheckpointEvent, op="save", target="builtins.dict", path=path, parts=parts)
    return trace


MODEL = {"kind": "model", "entries": 4}


def test_what_files_hold_is_learned_and_what_they_lack_is_told():
    def run(**parts: dict[str, object]) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", MLP).optimizer()
        for _ in range(4):
            saved(trace.steps(2), model=MODEL, **parts)
        return trace

    held = {"kind": "optimizer", "params": 4, "entries": 4}
    result = learn(run(optimizer=held).build())
    assert texts(result, "restored") == [
        "In train.py, every file epoch#.pt holds model, optimizer.",
        "In train.py, the part model of epoch#.pt has all the parameters of its model or "
        "optimizer.",
        "In train.py, the part optimizer of epoch#.pt has all the parameters of its model or "
        "optimizer.",
    ]
    assert not report_of(result.invariants, run(optimizer=held).build()).findings
    found = report_of(result.invariants, run(optimizer={**held, "params": 2}).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("restored", 1)]
    assert found[0].observed == "it has 2 values, and no optimizer has that many"
    found = report_of(result.invariants, run().build()).findings
    assert "optimizer is missing" in found[0].message


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
    ("names", "told"),
    [
        (without("optimizer"), "optimizer is missing"),
        (without("optimizer", ema="model"), "optimizer is missing"),
        (without("optimizer", "scheduler"), "optimizer and scheduler are missing"),
        (without("scaler"), "scaler is missing"),
        (without("rng"), "rng is missing"),
        (without("model"), "model is missing"),
    ],
)
def test_parts_that_a_file_lacks_are_told(names, told):
    (claim,) = [i for i in learn(saving(ALL)).invariants if "every file" in i.text]
    (finding,) = report_of([claim], saving(names)).findings
    assert finding.observed == told


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
    (claim,) = [i for i in learn(saving(ALL)).invariants if "every file" in i.text]
    assert not report_of([claim], saving(names, **program)).findings


def test_claims_on_files_that_older_versions_wrote_tell_no_kinds():
    older = {**BASE, "what": "file", "of": "epoch#.pt", "value": ["model", "optimizer"]}
    assert broken(decide("restored", older, saving(ALL))) == []
    assert len(broken(decide("restored", older, saving(without("optimizer"))))) == 4


def test_each_of_two_models_that_are_trained_is_to_be_saved():
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
    (claim,) = [i for i in learned if "every file" in i.text]
    (finding,) = report_of([claim], run(["Net", "Critic"], net=MODEL)).findings
    assert finding.observed == "critic is missing"
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


def test_a_part_is_as_large_as_what_it_is_of_whatever_the_reference_has():
    claims = [i for i in learn(sized(4)).invariants if "the part" in i.text]
    norm, mask = {**MLP_BN}, {"mask": "Net"}
    for healthy in (
        sized(6, parameters=DEEPER, saves=6),
        sized(4, ["fc1.weight", "fc2.weight"], ["fc1.bias", "fc2.bias"], saves=2),
        sized(9, parameters=norm, buffers=BN_BUFFERS, saves=6),
        sized(4, buffers=mask),
        sized(5, buffers=mask),
        sized(12),  # of modules that are shared, or were never used
    ):
        assert not report_of(claims, healthy).findings
    cut = [
        sized(4, parameters=DEEPER, saves=6),
        sized(6, parameters=norm, buffers=BN_BUFFERS, saves=6),
        sized(4, saves=2),
        sized(4, saves=8),
    ]
    found = [finding for run in cut for finding in report_of(claims, run).findings]
    assert [(f.subject.module, f.observed) for f in found] == [
        ("model of epoch#.pt", "it has 4 values, and no model has that many"),
        ("model of epoch#.pt", "it has 6 values, and no model has that many"),
        ("optimizer of epoch#.pt", "it has 2 values, and no optimizer has that many"),
        ("optimizer of epoch#.pt", "it has 8 values, and no optimizer has that many"),
    ]


def test_of_a_part_of_a_model_that_the_reference_saves_no_size_is_claimed():
    assert not [t for t in texts(learn(sized(2)), "restored") if "the part model" in t]
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
    (claim,) = [i for i in learn(reference).invariants if "loaded with its initial" in i.text]
    assert report_of([claim], averaged("xxh3-128:7", "xxh3-128:8")).findings == []
    (finding,) = report_of([claim], averaged("xxh3-128:7", "xxh3-128:first")).findings
    assert (finding.first_step, finding.subject.module) == (3, "Net")
    again = learn(averaged(*["xxh3-128:first", "xxh3-128:2"] * 3)).invariants
    assert not any("loaded with its initial" in i.text for i in again)


COUNTED = {"program": "train.py", "what": "counts", "of": "epoch of last.pt", "value": True}


def counting(*epochs: int, **others: int) -> TraceBuilder:
    """A file is saved with each of these numbers, after two steps each."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for epoch in epochs:
        trace.steps(2)
        numbers = {"epoch": epoch, **others}
        trace._add(CheckpointEvent, op="save", path="/tmp/last.pt", numbers=numbers)
    return trace


def test_an_epoch_that_begins_anew_is_told_at_its_first_step():
    result = learn(counting(0, 1, 2, 3, 4).build())
    said = "In train.py, the epoch of last.pt never decreases from one save to the next."
    assert texts(result, "restored") == [said]
    (finding,) = report_of(result.invariants, counting(0, 1, 2, 0, 1).build()).findings
    assert (finding.code, finding.first_step, finding.violations) == ("restored", 6, 1)
    for other in (counting(0, 0, 1, 1), counting(3, 6, 9), counting(7)):
        assert not report_of(result.invariants, other.build()).findings


def test_a_number_that_is_no_count_of_epochs_or_steps_says_nothing():
    told = texts(learn(counting(*range(9), best_epoch=3, step=5, seed=0).build()), "restored")
    assert [text for text in told if "never decreases" in text] == [
        "In train.py, the epoch of last.pt never decreases from one save to the next."
    ]
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


def test_weights_that_evaluation_finds_as_they_began_or_writes_are_told():
    result = learn(evaluated("a", "b", "c"))
    assert texts(result, "restored") == [
        "In train.py, after updates, Net is not evaluated with its initial weights.",
        "In train.py, no forward in evaluation changes the weights of Net.",
    ]
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
    (claim,) = [i for i in learned if "not evaluated with its initial weights" in i.text]
    assert not report_of([claim], run("first", "first", "first", "d", begins=3)).findings
    (stale,) = report_of([claim], run("first", "first", "first", "first", begins=1)).findings
    assert (stale.first_step, stale.subject.module) == (2, "Head")
