"""Facts of loads, saves and evaluations, in one process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.readings.resumptions import brings_back
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.models import EvalWeights, EvalWrites, ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.words import is_unowned

MODEL, OPTIMIZER, SCHEDULER, SCALER, RNG = "model", "optimizer", "scheduler", "scaler", "rng"
LOADS, COPIES, ALSO, FILE, PART = "loads", "copies", "also", "file", "part"
TRAINED, COUNTS, BACK = "trained", "counts", "back"
EVALUATED, LEFT = "evaluated", "left"
Key = tuple[str, str]  # the property, and what has it


class CheckpointFact(NamedTuple):
    """One observation.

    Attributes:
        weight: how many examples it gives.
        name: what it is about, for messages.
        counts: by kind; of a file, the objects that can be saved; of a part, its values.
    """

    key: Key
    value: Any
    weight: int
    name: str
    event: Event
    evidence: tuple[Event, ...]
    counts: Mapping[str, int] = {}


def missing(claimed: Mapping[str, str], fact: CheckpointFact) -> list[str]:
    """Parts that a file lacks, though the program has such objects.

    A part under another name is not missing, nor are generator states that are combined.
    """
    found, names = fact.value, []
    for kind in sorted(set(claimed.values())):
        mine = {name for name, other in claimed.items() if other == kind}
        now = {name for name, other in found.items() if other == kind}
        is_short = len(now) < min(len(mine), fact.counts.get(kind, len(mine)))
        if is_short and not (kind == RNG and now - mine):
            names += sorted(mine - now)
    return names


# Buffers that every module saves
_ALWAYS_SAVED = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(slots=True)
class SavableState:
    """Follows optimizers, schedulers, scalers and models of one process."""

    _held: dict[str, OptimizerEvent] = field(default_factory=dict)  # optimizers by id
    _stepped: set[str | None] = field(
        default_factory=set
    )  # optimizers that stepped since the last was created
    _scheduled: set[str | None] = field(default_factory=set)  # optimizers with a scheduler
    # Schedulers that step, by optimizer and class; parts of a composed one do not
    _schedulers: set[tuple[str | None, str]] = field(default_factory=set)
    _has_scaler: bool = False
    _models: set[str] = field(default_factory=set)
    _variables: dict[str, dict[str, str]] = field(default_factory=dict)  # roles, by model and name

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._held[event.id] = event
            if event.change == "created":  # those of an earlier fold or stage may be done
                self._stepped.clear()
        elif (model := observed(event, ModelStructure)) is not None:
            self._models.add(model.name)
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StateEvent) and event.role in ("parameter", "buffer"):
            if event.change == "gone":
                self._variables.get(model_of(event.name), {}).pop(event.name, None)
            elif event.change == "new" and not is_unowned(event.name):
                self._variables.setdefault(model_of(event.name), {})[event.name] = event.role

    def _call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.OPTIMIZER_STEP:
            self._stepped.add(event.owner)
        elif family == Families.SCHEDULER_CREATED:
            self._scheduled.add(event.owner)
        elif family == Families.SCHEDULER_STEP:
            self._schedulers.add((event.owner, event.api))
        elif family == Families.SCALER_STEP:
            self._has_scaler |= event.args.get("enabled") is not False

    def numbers(self, size: int) -> dict[str, int]:
        """The number of objects to save, by kind. size: saved values of all models.

        There is no number of models if fewer values are saved than trained: a part may be missing.
        """
        stepped = self._stepped
        schedulers = sum(owner in stepped for owner, _ in self._schedulers)
        found = {
            OPTIMIZER: len(stepped),
            SCHEDULER: max(schedulers, min(1, len(self._scheduled & stepped))),
            SCALER: int(self._has_scaler),
        }
        events = [event for owner, event in self._held.items() if owner in stepped]
        trained = {identity for e in events for group in e.groups for identity in group.ids}
        if size >= len(trained):
            models = set().union(*map(_models_of, events))
            classes = {model.partition("#")[0] for model in models}
            copies = {model for model in self._models if model.partition("#")[0] in classes}
            found[MODEL] = len(models | copies)  # a copy is an average, or a target network
        return found

    def has(self, kind: str, count: int) -> bool | None:
        """Whether a model, or optimizer, has so many values; None if that is not known."""
        if kind == OPTIMIZER:
            held = {sum(len(group.params) for group in e.groups) for e in self._held.values()}
            return count in held if held else None
        sizes = [_sizes(roles) for roles in self._variables.values()]
        if any(low <= count <= high for low, high in sizes):
            return True
        # More than all: a state may hold a module that is shared or unused
        return None if count > max((high for _, high in sizes), default=0) else False

    def models_of_others(self, owner: str | None) -> set[str]:
        """Models that other optimizers hold, and not this one."""
        if owner not in self._held:
            return set()
        others = (event for other, event in self._held.items() if other != owner)
        return set().union(*map(_models_of, others)) - _models_of(self._held[owner])


def _models_of(event: OptimizerEvent) -> set[str]:
    return {model_of(name) for group in event.groups for name in group.params}


def model_of(name: str) -> str:
    """The model that a variable belongs to."""
    return name.partition(".")[0]


def _sizes(roles: Mapping[str, str]) -> tuple[int, int]:
    """The fewest and the most values in the state of a model: some buffers may be left out."""
    saved = [n for n, role in roles.items() if role == "parameter" or n.endswith(_ALWAYS_SAVED)]
    return len(saved), len(roles)


_MOST_NAMES = 8  # parameters of one evaluation that count as examples

_EVALUATIONS: tuple[type[Observation], ...] = (EvalWeights, EvalWrites)


@dataclass(slots=True)
class Evaluations:
    """Follows the evaluations of one process."""

    # Of this step, by model: the mark, and its number of values
    _seen: dict[str, tuple[MarkEvent, int]] = field(default_factory=dict)
    _first: set[str] = field(
        default_factory=set
    )  # models that were evaluated with their initial weights

    def observe(
        self,
        event: MarkEvent | OptimizerEvent | StepEvent,
        began: Mapping[str, str],
        fresh: Set[str],
    ) -> Iterator[CheckpointFact]:
        """Enter an event. began: initial fingerprints; fresh: parameters without an update."""
        if isinstance(event, StepEvent):
            yield from self._left()
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":  # a fold or trial may start with the same weights
                self._first.clear()
        else:
            found = observed(event, *_EVALUATIONS)
            if isinstance(found, EvalWeights):
                model, values = found.model, found.values
                self._seen[model] = event, len(values)
                known = (values.keys() & began.keys()) - fresh
                has_moved = any(values[name] != began[name] for name in known)
                was_first = model in self._first
                self._first.discard(model)
                if known and not has_moved:
                    self._first.add(model)
                if known and (has_moved or was_first):  # a first update may have a rate of zero
                    weight = min(_MOST_NAMES, len(known))
                    yield CheckpointFact(
                        (EVALUATED, model), has_moved, weight, model, event, (event,)
                    )
            elif isinstance(found, EvalWrites) and found.names:
                self._seen.pop(found.model, None)
                yield CheckpointFact((LEFT, found.model), False, 1, found.names[0], event, (event,))

    def _left(self) -> Iterator[CheckpointFact]:
        """The step of these evaluations has ended: nothing was written."""
        for model, (event, count) in self._seen.items():
            weight = min(_MOST_NAMES, count)
            yield CheckpointFact((LEFT, model), True, weight, model, event, (event,))
        self._seen.clear()


_MOST_COUNTED = 64  # values of one load or save that count as examples
# A restored value counts twice: its name and its shape must both match the model.
_PER_VALUE = 2
_MOST_KEYS = 20  # parts of a file that are read
_EPOCH = re.compile(r"(start_|last_|cur_|current_|resume_)?epoch(_num|_idx|_index)?")
_STEP = re.compile(
    r"(global_|train_|start_|last_|current_)?(step|iteration)|(global_)?(iter|iter_num)|num_updates"
)


class Checkpoints:
    """Follows one process."""

    def __init__(self) -> None:
        self._open: list[CheckpointEvent] = []  # loads since the last update
        self._scheduler = SCHEDULER  # class of the one that was made last
        self._began: dict[str, str] = {}  # initial fingerprints of parameters
        self._fresh: set[str] = set()  # parameters without an update so far
        self._numbers: dict[tuple[str, str], tuple[int, int]] = {}  # the last, and how far it rose
        self._evaluations = Evaluations()
        self._savable = SavableState()
        self._update: CallEvent | None = None  # the first since the last load or save
        self._has_updated = False

    def observe(self, event: Event) -> Iterator[CheckpointFact]:
        """The facts that ``event`` completes."""
        self._savable.observe(event)
        if isinstance(event, CheckpointEvent):
            if event.op == "save":
                yield from self._of_numbers(event)
            self._update = None
            if event.op == "load_state_dict" and event.target:
                self._open.append(event)
                if _kind(event) == MODEL:
                    target, matched = _target(event), event.matched or 0
                    weight = _weight(event.entries or 0)
                    yield CheckpointFact((LOADS, target), matched, weight, target, event, (event,))
                    yield CheckpointFact(
                        (COPIES, ""), event.shared == 0, weight, target, event, (event,)
                    )
                yield from self._of_values(event)
            elif event.op == "save":
                yield from self._of_save(event)
        elif isinstance(event, StateEvent):
            summary = event.summary
            if event.change == "new" and summary is not None and summary.fingerprint:
                self._began[event.name] = summary.fingerprint
                self._fresh.add(event.name)
        elif isinstance(event, (MarkEvent, OptimizerEvent, StepEvent)):
            yield from self._evaluations.observe(event, self._began, self._fresh)
        elif isinstance(event, CallEvent):
            if event.family == Families.SCHEDULER_CREATED:
                self._scheduler = event.api.split(".")[-2]
            elif event.family == Families.OPTIMIZER_STEP:
                yield from self._of_update(event)

    def _of_update(self, event: CallEvent) -> Iterator[CheckpointFact]:
        if self._fresh:
            others = self._savable.models_of_others(event.owner)
            self._fresh = {name for name in self._fresh if model_of(name) in others}
        self._update = self._update or event
        loads, self._open = self._open, []
        if loads:
            yield from self._of_resumption(loads, event)
            if self._has_updated:
                yield from _of_swaps([load for load in loads if _kind(load) == MODEL], event)
        self._has_updated = True

    def _of_numbers(self, save: CheckpointEvent) -> Iterator[CheckpointFact]:
        """Whether the count in a file has not decreased since it was saved before."""
        file = _file(save)
        for name in _counts(save.numbers):
            value = save.numbers[name]
            last, rise = self._numbers.get((name, file), (None, 0))
            if last is not None and self._update is not None:
                weight = _PER_VALUE if 0 < value - last == rise else 1
                about = f"{name} of {file}"
                # A run that continues from another number does so from its first update.
                evidence = (self._update, save)
                key = (COUNTS, about)
                yield CheckpointFact(key, value >= last, weight, about, self._update, evidence)
            if last is None or self._update is not None:
                self._numbers[name, file] = (value, 0 if last is None else value - last)

    def _of_save(self, save: CheckpointEvent) -> Iterator[CheckpointFact]:
        if not save.path or not save.parts:
            return
        file, kinds = _file(save), _kinds(save)
        counts = {key: _count(part) for key, part in sorted(save.parts.items())}
        weight = _weight(sum(count or 0 for count in counts.values()))
        if (save.entries or 0) <= _MOST_KEYS:
            size = sum(count or 0 for key, count in counts.items() if kinds[key] == MODEL)
            there_are = self._savable.numbers(size)
            yield CheckpointFact((FILE, file), kinds, weight, file, save, (save,), there_are)
        for key, count in counts.items():
            is_whole = None if count is None else self._savable.has(kinds[key], count)
            if count is not None and is_whole is not None:
                about = f"{key} of {file}"
                counts_by_kind = {kinds[key]: count}
                yield CheckpointFact(
                    (PART, about), is_whole, weight, about, save, (save,), counts_by_kind
                )

    def _of_values(self, load: CheckpointEvent) -> Iterator[CheckpointFact]:
        """Whether a state that is loaded after updates differs from the initial one."""
        names = load.values.keys() & self._began.keys()
        if _kind(load) == MODEL and names and not names & self._fresh:
            has_moved = any(load.values[name] != self._began[name] for name in names)
            target = _target(load)
            yield CheckpointFact(
                (TRAINED, target), has_moved, _weight(len(names)), target, load, (load,)
            )

    def _of_resumption(
        self, loads: list[CheckpointEvent], update: CallEvent
    ) -> Iterator[CheckpointFact]:
        kinds = {_kind(load) for load in loads if _kind(load) != OPTIMIZER or brings_back(load)}
        weight = _weight(sum(load.entries or 0 for load in loads))
        names = {OPTIMIZER: update.api.split(".")[-2], SCHEDULER: self._scheduler}
        for load in loads:
            if _kind(load) == MODEL:
                for kind, name in names.items():
                    key = (ALSO, f"{_target(load)} {kind}")
                    yield CheckpointFact(key, kind in kinds, weight, name, update, (load, update))


def _of_swaps(loads: Sequence[CheckpointEvent], update: CallEvent) -> Iterator[CheckpointFact]:
    """Whether weights that are swapped in between two updates are swapped back."""
    for target in sorted({_target(load) for load in loads}):
        mine = [load for load in loads if _target(load) == target]
        weight = _weight(mine[-1].entries or 0)
        yield CheckpointFact(
            (BACK, target), len(mine) % 2 == 0, weight, target, update, (mine[-1], update)
        )


def _kinds(save: CheckpointEvent) -> dict[str, str]:
    """The kinds of the parts of a file, by key."""
    parts = save.parts.items()
    return {key: str(part.get("kind")) for key, part in parts if isinstance(part, dict)}


def _counts(numbers: Mapping[str, int]) -> list[str]:
    """Names of counts that only rise. Steps may start again in each epoch."""
    epochs = sorted(filter(_EPOCH.fullmatch, numbers))
    return epochs or sorted(filter(_STEP.fullmatch, numbers))


def _file(event: CheckpointEvent) -> str:
    """The name of a file, without its numbers."""
    return re.sub(r"\d+", "#", re.split(r"[\\/]", event.path or "")[-1])


def _count(part: Any) -> int | None:
    """The number of parameters of a part; None if it is not recorded."""
    found = None
    if isinstance(part, dict):
        found = part.get("params") if part.get("kind") == OPTIMIZER else part.get("entries")
        if part.get("kind") not in (OPTIMIZER, MODEL):
            found = None
    return found if isinstance(found, int) else None


def _weight(values: int) -> int:
    return min(_MOST_COUNTED, max(1, _PER_VALUE * values))


def _kind(load: CheckpointEvent) -> str:
    if "lr_scheduler" in (load.target or ""):
        return SCHEDULER
    if load.owner is not None:
        return OPTIMIZER
    return MODEL if load.matched is not None else "other"


def _target(load: CheckpointEvent) -> str:
    """The model, without the number of its instance: a resumed one may be the second."""
    return (load.target or "").partition("#")[0]
