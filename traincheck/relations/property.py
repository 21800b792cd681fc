"""The relation *property*: what experiments and observations show stays as in reference runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from traincheck.readings.evaluations import EVALUATIONS, Evaluation, KeptStates
from traincheck.readings.reading import MANY, EventReader, Reader, Reading, Row
from traincheck.readings.rescaled_gradients import RESCALED, RescaledGradients
from traincheck.relations.learned import Learned
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import DatasetReads, MetricUse
from traincheck.schema.observations.gradients import Recomputation, ReplacedGradients
from traincheck.schema.observations.loads import (
    EmbeddingRows,
    IneffectiveWrite,
    LoadedGenerators,
    LoadedHyperparameters,
    LoadFollowed,
)
from traincheck.schema.observations.losses import LossSums
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments, Status
from traincheck.schema.probes.words import EXPERIMENTS
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Property(Row):
    """A property that has one value in each run, a word.

    Attributes:
        claims: value -> what a claim of it says, with ``{of}``. Other values are never claimed.
    """

    claims: Mapping[str, str]

    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        found = set(values)
        return [{"value": value} for value in found if len(found) == 1 and value in self.claims]

    def is_known(self, params: Mapping[str, Any]) -> bool:
        return params.get("value") in self.claims

    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        return bool(value == params["value"])

    def says(self, params: Mapping[str, Any]) -> str:
        return self.claims[params["value"]].format(of=params.get("of", ""))


_NEEDS = Needs(kinds=frozenset({"probe"}))


def _read(event: Event) -> Iterable[Reading]:
    if not isinstance(event, ProbeEvent) or event.name not in EXPERIMENTS:
        return ()
    if event.status in (Status.NOT_OBSERVABLE, Status.FAILED):
        return ()
    numbers = {"change": 0.0, "ratio": 1.0, "loss": 0.0, "without": 0.0} | dict(event.numbers)
    text = EXPERIMENTS[event.name].seen.format_map(numbers)
    operation = event.detail.get("operation", "").rpartition(".")[2]
    place = short(event.place)
    where = event.where or event.model
    if operation:
        text += f", first in {operation}() of {where}{f' ({place})' if place else ''}"
    elif event.where:
        text += f" ({event.where})"
    if event.detail.get("recomputed"):
        how = "with other random numbers" if event.detail.get("without_state") else "in backward"
        text += f"; segments are recomputed {how}{f' ({place})' if place else ''}"
    if event.detail.get("fill"):
        text += f"; masked scores are set to {event.detail['fill']}, so padding keeps weight"
    at = Subject(module=where)
    return [Reading(event.name, event.model, "", event.status, event, at, text, MANY)]


_READER = partial(EventReader, _read)  # one for all
SHOWN_BY_PROBES = tuple(
    Property(
        name=each.name,
        needs=_NEEDS,
        reader=_READER,
        claims={Status.HELD: each.claim},
        headline=each.headline,
        cause=each.cause,
        fix=each.fix,
        symptom=each.symptom,
    )
    for each in EXPERIMENTS.values()
)


_WHOLE, _DROPPED = "whole", "dropped"
_PLAIN, _SCALED = "plain", "scaled"
_REPLACED, _COMPUTED = "replaced", "computed"
_SAME, _OTHER = "same", "other"
_CLOSE = 1e-3  # of a factor to 1


def _sums(event: Event) -> Iterable[Reading]:
    found = observed(event, LossSums)
    if found is None or not found.sums:
        return
    wrong = [each for each in found.sums if each.dropped and each.trained and not each.is_used]
    dropped = sorted({name for each in wrong for name in each.dropped})
    seen = f"backward() does not reach the sum: {joined(dropped)} gets no gradient"
    at = Subject(api=Families.BACKWARD)
    value = _DROPPED if dropped else _WHOLE
    yield Reading("trained_sums", "losses", "", value, event, at, seen)


class _Rescaled(Reader):
    """Whether gradients are scaled while they accumulate."""

    def __init__(self) -> None:
        self._fact = RescaledGradients()

    def observe(self, event: Event) -> Iterable[Reading]:
        self._fact.observe(event)
        if not isinstance(event, StepEvent) or not self._fact.windows:
            return
        found = [one for one in self._fact.ended if abs(one.factor - 1) > _CLOSE]
        at = Subject(api=Families.BACKWARD)
        seen = ""
        if found:
            one = found[0]
            seen = (
                f"after {one.passes} of the backward passes, {joined(list(one.names), 3)} are "
                f"multiplied by {one.factor:.4g}, and the next pass adds to that"
            )
        value = _SCALED if found else _PLAIN
        yield Reading("rescaled_sums", "gradients", "", value, event, at, seen)


class _HandedOver(Reader):
    """Whether gradients are replaced between backward and the update, by optimizer.

    The first step of an optimizer is left out: nothing is known of its gradients before.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._replaced: set[str] = set()
        self._stepped: dict[str, CallEvent] = {}

    def observe(self, event: Event) -> Iterable[Reading]:
        if isinstance(event, CallEvent):
            is_step = (event.family or event.api) == Families.OPTIMIZER_STEP
            if is_step and isinstance(event.owner, str) and event.exception is None:
                self._stepped.setdefault(event.owner, event)
        elif isinstance(event, StepEvent):
            yield from self._end(event)
        elif (found := observed(event, ReplacedGradients)) is not None:
            self._replaced.add(found.owner)

    def _end(self, event: StepEvent) -> Iterable[Reading]:
        if event.recorded and event.complete:
            for owner, call in sorted(self._stepped.items()):
                if owner not in self._known:
                    continue
                value, seen = _COMPUTED, f"no new gradients were handed over before {owner} stepped"
                if owner in self._replaced:
                    value, seen = _REPLACED, f"gradients of {owner} were written after backward()"
                at = Subject(api=Families.OPTIMIZER_STEP, variable=owner)
                yield Reading("handed_over", owner, "", value, call, at, seen)
        self._known |= self._stepped.keys()
        self._stepped.clear()
        self._replaced.clear()


def _recomputed(event: Event) -> Iterable[Reading]:
    found = observed(event, Recomputation)
    if found is None or not found.segments:
        return
    seen = ""
    if found.differing:
        one = found.differing[0]
        how = "" if one.preserves_rng else " without the random states of the first pass"
        seen = (
            f"{len(found.differing)} of {found.segments} segments are recomputed{how}, and "
            f"{one.share:.0%} of the elements of {one.function} differ"
        )
    at = Subject(api="torch.utils.checkpoint.checkpoint")
    value = _OTHER if found.differing else _SAME
    yield Reading("recomputed", "segments", "", value, event, at, seen)


RECOMPUTED = Property(
    name="recomputed",
    needs=needs_of(Recomputation),
    reader=partial(EventReader, _recomputed),
    claims={_SAME: "checkpointed {of} have the same values when they are recomputed"},
    headline="Activation checkpointing now recomputes other values",
    cause="Random states may not be restored, or the model may change between the two passes.",
    fix="Call checkpoint() with preserve_rng_state=True, which is its default.",
)
TRAINED_SUMS = Property(
    name="trained_sums",
    needs=needs_of(LossSums),
    reader=partial(EventReader, _sums),
    claims={_WHOLE: "each term of a sum of {of} is behind the root of backward()"},
    headline="A term of the loss gets no gradient any more",
    cause="The sum may only be logged, and backward() called on one of its terms.",
    fix="Call backward() on the sum.",
    symptom=Symptom.STEP_WITHOUT_GRADIENT,
)
RESCALED_SUMS = Property(
    name="rescaled_sums",
    needs=RESCALED,
    reader=_Rescaled,
    claims={_PLAIN: "{of} that accumulate over several backward passes are not scaled in between"},
    headline="Gradients are now scaled while they accumulate",
    cause="The accumulated gradients may be divided after each backward pass, not once.",
    fix="Divide the loss instead: (loss / n).backward().",
    symptom=Symptom.WRONG_ORDER,
)
HANDED_OVER = Property(
    name="handed_over",
    needs=needs_of(ReplacedGradients)
    | Needs(calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"step"})),
    reader=_HandedOver,
    claims={_REPLACED: "the program writes new gradients for {of} before each of its steps"},
    headline="The optimizer steps with old gradients",
    cause="Gradients of another model may be handed over only once.",
    fix="Copy the gradients before each optimizer.step().",
    symptom=Symptom.STEP_WITHOUT_GRADIENT,
)


_NEAR = 0.5  # of the distance that the load moved
_FEWEST = 3  # evaluations that show an order
_KEPT, _UNDONE = "kept", "undone"
_ZERO, _NOT_ZERO = "zero", "not zero"
_RESTORED, _NOT_RESTORED = "restored", "not restored"
_LOWEST, _HIGHEST = "lowest", "highest"


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


_CHANGED = "changed"
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


_ALL = (
    *SHOWN_BY_PROBES, TRAINED_SUMS, RESCALED_SUMS, HANDED_OVER, RECOMPUTED, LOADED_WEIGHTS,
    KEPT_STATE, RESTORED_GENERATOR, PADDING_VECTOR, LOADED_SETTING, WRITTEN_SETTING, METRIC_PHASES,
    DATASET_READS,
)  # fmt: skip
PROPERTIES: Mapping[str, Property] = {each.name: each for each in _ALL}


class PropertyHolds(Learned):
    """A property that was read in all reference runs is the same.

    Claims:
        For one program and one subject, such as a model, an optimizer or a dataset:
        - An experiment of `traincheck probe` holds: a sample does not depend on the others of its
          batch or on its place, padding and later tokens take no part, no activation overwrites
          its input, statistics do not learn in evaluation, the gradient is that of the loss.
        - Each term of a sum of losses is behind the root of backward().
        - Gradients that accumulate are not scaled in between.
        - Gradients that the program writes itself are written before each update.
        - Checkpointed segments have the same values when they are recomputed.
        - The padding vector of an embedding is zero.
        - The first update after a load starts from the loaded weights.
        - The state that is kept as the best one has the lowest evaluation loss.
        - After a load, a hyper-parameter is the loaded one, or the one that was set before.
        - Hyper-parameters are set where the optimizer reads them.
        - A metric is computed over samples of one phase.
        - A sample of a dataset has the same values in each epoch.

    Example:
        ``In train.py, padding takes no part in the results of Encoder.`` It breaks when the mask
        of padding gets another shape.

    Evidence:
        - An experiment, a load, a metric and a comparison of a dataset are ten examples each: they
          compare many numbers. A step is one example.
        - What varies within a run proves nothing, and is not claimed.

    Chance:
        A coin for each example.

    Not claimed:
        - What could not be observed. Experiments need runs that were recorded with `--probe`.
        - Properties that do not hold in the reference run.
    """

    name = term = "property"
    rows = PROPERTIES
    named = ("what", "of")
