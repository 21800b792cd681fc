"""Facts of loads and saves, in one process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.resumptions import brings_back
from traincheck.relations.restored.evaluations import Evaluations
from traincheck.relations.restored.fact import (
    ALSO,
    BACK,
    COPIES,
    COUNTS,
    FILE,
    LOADS,
    MODEL,
    OPTIMIZER,
    PART,
    SCHEDULER,
    TRAINED,
    CheckpointFact,
)
from traincheck.relations.restored.saved_state import SavableState, model_of
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.torch_api import Families

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
                yield from _of_load(event)
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


def _of_load(event: CheckpointEvent) -> Iterator[CheckpointFact]:
    if _kind(event) == MODEL:
        target, matched = _target(event), event.matched or 0
        weight = _weight(event.entries or 0)
        yield CheckpointFact((LOADS, target), matched, weight, target, event, (event,))
        yield CheckpointFact((COPIES, ""), event.shared == 0, weight, target, event, (event,))


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
