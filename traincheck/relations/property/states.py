"""Properties of loads and kept states, of settings after them, and of the data that is read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.readings.evaluations import EVALUATIONS, Evaluation, KeptStates
from traincheck.readings.reading import MANY, EventReader, Reader, Reading
from traincheck.relations.property.base import Property
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import DatasetReads, MetricUse
from traincheck.schema.observations.loads import (
    EmbeddingRows,
    IneffectiveWrite,
    LoadedGenerators,
    LoadedHyperparameters,
    LoadFollowed,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.probes.names import Experiments
from traincheck.schema.probes.words import EXPERIMENTS
from traincheck.schema.torch_api import Families

_NEAR = 0.5  # of the distance that the load moved
_FEWEST = 3  # evaluations that show an order
_KEPT, _UNDONE = "kept", "undone"
_ZERO, _NOT_ZERO = "zero", "not zero"
_RESTORED, _NOT_RESTORED = "restored", "not restored"
_LOWEST, _HIGHEST, _OTHER = "lowest", "highest", "other"


def _loads(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadFollowed)
    if found is None or not found.values:
        return
    jump = sum(each.jump**2 for each in found.values.values()) ** 0.5
    back = sum(each.back**2 for each in found.values.values()) ** 0.5
    seen = (
        f"the load moved the weights by {jump:.3g}; after the next update they are {back:.3g} from "
        "their values before the load"
    )
    value = _UNDONE if back < _NEAR * jump else _KEPT
    at = Subject(module=found.model)
    yield Reading("loaded_weights", found.model, "", value, event, at, seen, MANY)


class _Kept(Reader):
    """Which of the evaluated states the program keeps at the end."""

    def __init__(self) -> None:
        self._states = KeptStates()

    def observe(self, event: Event) -> Iterable[Reading]:
        self._states.observe(event)
        return ()

    def finish(self) -> Iterable[Reading]:
        losses = [one.loss for one in self._states.evaluations.all if one.loss is not None]
        if len(losses) < _FEWEST or max(losses) == min(losses):
            return
        for event, kept in self._states.kept():
            if kept.loss is not None:
                yield _of_kept(event, kept, losses)


def _of_kept(event: CheckpointEvent, kept: Evaluation, losses: list[float]) -> Reading:
    assert kept.loss is not None
    value = {min(losses): _LOWEST, max(losses): _HIGHEST}.get(kept.loss, _OTHER)
    seen = (
        f"the state of step {kept.step} is kept, whose evaluation loss is {kept.loss:.4g}; the "
        f"best state has {min(losses):.4g}, the worst {max(losses):.4g}"
    )
    at = Subject(module=event.target) if event.op == "load_state_dict" else Subject(api="save")
    of = "restored" if event.op == "load_state_dict" else "saved"
    return Reading("kept_state", of, "", value, event, at, seen, MANY)


def _rows(event: Event) -> Iterable[Reading]:
    found = observed(event, EmbeddingRows)
    if found is None or found.padding is None or not found.padding_ids:
        return
    seen = (
        f"row {found.padding} of {found.name}, the vector of padding, has the norm "
        f"{found.padding_norm:.3g}; other rows have {found.usual_norm:.3g}"
    )
    value = _NOT_ZERO if found.padding_norm else _ZERO
    at = Subject(variable=found.name)
    yield Reading("padding_vector", found.name, "", value, event, at, seen, MANY)


def _generators(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadedGenerators)
    for state in () if found is None else found.states:
        if state.owned or not state.drawn:
            continue
        seen = (
            f"the loaded file holds a state of {state.generator} ({state.key}), and no generator "
            "has it before the next update"
        )
        value = _RESTORED if state.restored else _NOT_RESTORED
        at = Subject(api=f"{state.generator} generator")
        yield Reading("restored_random_state", state.generator, "", value, event, at, seen, MANY)


RESTORED_GENERATOR = Property(
    name="restored_random_state",
    needs=needs_of(LoadedGenerators),
    reader=partial(EventReader, _generators),
    claims={_RESTORED: "the states of {of}'s random generator in a loaded file are restored"},
    headline="The state of a random generator in a loaded file is not restored any more",
    cause="The program may not set the state any more, or may seed the generator after it.",
    fix="Set the state after the load, and after everything that seeds.",
    symptom=Symptom.NOT_RESTORED,
)
PADDING_VECTOR = Property(
    name="padding_vector",
    needs=needs_of(EmbeddingRows),
    reader=partial(EventReader, _rows),
    claims={_ZERO: "the padding vector of {of} is zero"},
    headline="The padding vector of an embedding is not zero any more",
    cause=EXPERIMENTS[Experiments.PADDING_ROW].cause,
    fix="After the initialization: embedding.weight[embedding.padding_idx].zero_().",
    symptom=Symptom.INITIALIZATION,
)
LOADED_WEIGHTS = Property(
    name="loaded_weights",
    needs=needs_of(LoadFollowed),
    reader=partial(EventReader, _loads),
    claims={_KEPT: "the first update after a load of {of} starts from the loaded weights"},
    headline="The first update after a load starts from the weights before it",
    cause=(
        "A copy of the weights that was made before the load may be written over the loaded ones."
    ),
    fix="Load the model before the optimizer or average copies its weights.",
    symptom=Symptom.NOT_RESTORED,
)
KEPT_STATE = Property(
    name="kept_state",
    needs=EVALUATIONS,
    reader=_Kept,
    claims={_LOWEST: "the state that is {of} as the best one has the lowest evaluation loss"},
    headline="The state that is kept as the best one is not the best any more",
    cause="The comparison that decides which state is kept may have the wrong direction.",
    fix="Keep the state if loss < best.",
    symptom=Symptom.NOT_RESTORED,
)


_ASKED, _LOADED, _NEITHER = "asked", "loaded", "other"
_IN_FORCE, _ELSEWHERE = "in force", "elsewhere"
_NAMES = {"lr": "learning rate", "initial_lr": "initial learning rate"}


def _loaded(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadedHyperparameters)
    if found is None:
        return
    for each in found.settings:
        name = _NAMES.get(each.name, each.name)
        value = _NEITHER
        if each.later in (each.before, each.loaded):
            value = _ASKED if each.later == each.before else _LOADED
        seen = (
            f"the program set the {name} to {each.before}, the load to {each.loaded}, and the next "
            f"update uses {each.later}"
        )
        yield Reading(
            "loaded_setting",
            f"{name} of group {each.group} of {found.owner}",
            "",
            value,
            event,
            Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            seen,
            MANY,
        )


def _written(event: Event) -> Iterable[Reading]:
    if isinstance(event, CallEvent) and (event.family or event.api) == Families.OPTIMIZER_STEP:
        owner = str(event.owner)
        at = Subject(api=Families.OPTIMIZER_STEP, variable=owner)
        yield Reading("written_setting", owner, "", _IN_FORCE, event, at, "")
    found = observed(event, IneffectiveWrite)
    if found is not None:
        name = _NAMES.get(found.name, found.name)
        yield Reading(
            "written_setting",
            found.owner,
            "",
            _ELSEWHERE,
            event,
            Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            f"the {name} is set to {found.written} in a place that {found.owner} does not "
            f"read ({found.place}), and stays {found.in_force}",
        )


LOADED_SETTING = Property(
    name="loaded_setting",
    needs=needs_of(LoadedHyperparameters),
    reader=partial(EventReader, _loaded),
    claims={
        _ASKED: "after a load, the {of} is the one that the program set before it",
        _LOADED: "after a load, the {of} is the loaded one",
    },
    headline="After a load, another hyper-parameter is in force than in the reference runs",
    cause="Optimizer.load_state_dict() also restores hyper-parameters.",
    fix='Set it again after the load: for group in optimizer.param_groups: group["lr"] = lr.',
    symptom=Symptom.SCHEDULE,
)
WRITTEN_SETTING = Property(
    name="written_setting",
    needs=needs_of(IneffectiveWrite) | Needs(calls=frozenset({Families.OPTIMIZER_STEP})),
    reader=partial(EventReader, _written),
    claims={_IN_FORCE: "each hyper-parameter that is set is one that {of} reads"},
    headline="A hyper-parameter is now set where the optimizer does not read it",
    cause="The program may write to a copy of the groups.",
    fix='Write to the groups in use: for group in optimizer.param_groups: group["lr"] = lr.',
    symptom=Symptom.SCHEDULE,
)


_SAME, _CHANGED = "same", "changed"
_TRAINING, _EVALUATION, _BOTH = "training", "evaluation", "both"


def _phases(event: Event) -> Iterable[Reading]:
    found = observed(event, MetricUse)
    if found is None or not found.training + found.evaluation:
        return
    value = _BOTH if found.training and found.evaluation else _TRAINING
    value = value if found.training else _EVALUATION
    name = f"{found.metric} ({found.cls.rpartition('.')[2]})"
    seen = (
        f"the metric was computed over {found.training} updates in training and "
        f"{found.evaluation} in evaluation"
    )
    at = Subject(api=found.cls)
    yield Reading("metric_phases", name, "", value, event, at, seen, MANY)


def _reads(event: Event) -> Iterable[Reading]:
    found = observed(event, DatasetReads)
    if found is None or not found.compared:
        return
    name = found.cls.rpartition(".")[2]
    value = _CHANGED if found.differing else _SAME
    seen = f"{found.differing} of {found.compared} samples differ from an earlier epoch"
    if found.written:
        seen += f"; reading a sample writes to {found.attribute or 'the dataset'}"
    at = Subject(api=found.cls)
    yield Reading("dataset_reads", name, "", value, event, at, seen, MANY)


METRIC_PHASES = Property(
    name="metric_phases",
    needs=needs_of(MetricUse),
    reader=partial(EventReader, _phases),
    claims={
        _TRAINING: "metric {of} is computed over samples of training only",
        _EVALUATION: "metric {of} is computed over samples of evaluation only",
    },
    headline="A metric is now computed over samples of two phases",
    cause="One metric object may be updated in both phases, or not be reset between them.",
    fix="Create one metric object for each phase, or call metric.reset() between them.",
)
DATASET_READS = Property(
    name="dataset_reads",
    needs=needs_of(DatasetReads),
    reader=partial(EventReader, _reads),
    claims={_SAME: "a sample of dataset {of} has the same values in each epoch"},
    headline="A sample of the dataset now has other values in each epoch",
    cause=(
        "__getitem__ may write to the stored data in place, or draw from an unrecorded generator."
    ),
    fix="Copy the item before changing it: self.data[index].clone().",
    symptom=Symptom.OVERWRITTEN,
)
