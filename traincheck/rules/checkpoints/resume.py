"""Parts of a checkpoint that were loaded, and parts that were not, up to the next step."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from traincheck.readings.provider import RunState
from traincheck.readings.resumptions import brings_back
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.torch_api import Families

RESUME = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
    kinds=frozenset({"checkpoint", "optimizer", "step"}),
)


def _folder(path: str | None) -> str:
    return posixpath.dirname((path or "").replace("\\", "/"))


class Resume(RunState):
    """Follows the loads and saves of one process.

    Attributes:
        file: the checkpoint file that was read last; the other fields count from there.
        model: the last load that changed a model since.
        optimizer, scheduler: the last loads since.
        loaded: loads of optimizers by id; the key is None for an unknown optimizer.
        again: optimizers that were loaded twice before they had stepped.
        saved: paths that this run writes.
        is_earlier: the file existed before this run wrote it.
        restored: whether the state of any optimizer was ever loaded.
        fresh: creations of optimizers that have not stepped, by id.
        stepped: first steps of optimizers since the file was read, by id.
        first_steps: creations of optimizers that have made their first step since, by id.
        schedules: creations of schedulers, by id of their optimizer.
        continued: optimizers whose schedule started at a given epoch, or had run before.
    """

    reads = RESUME

    def __init__(self) -> None:
        self.file: CheckpointEvent | None = None
        self.model: CheckpointEvent | None = None
        self.optimizer: CheckpointEvent | None = None
        self.scheduler: CheckpointEvent | None = None
        self.loaded: dict[str | None, CheckpointEvent] = {}
        self.again: set[str | None] = set()
        self.saved: set[str] = set()
        self.is_earlier = False
        self.restored = False
        self._is_advanced = False  # whether a scheduler was stepped
        self._read: set[str] = set()
        self._apart: dict[str, tuple[CheckpointEvent, Mapping[str, Any]]] = {}  # by folder
        self.fresh: dict[str, OptimizerEvent] = {}
        self.stepped: dict[str, CallEvent] = {}
        self.first_steps: dict[str, OptimizerEvent] = {}
        self.schedules: dict[str, CallEvent] = {}
        self.continued: set[str] = set()

    def part(self, kind: str) -> Mapping[str, Any] | None:
        """The first part of the file of this kind."""
        return next(iter(self.parts(kind)), None)

    def parts(self, kind: str) -> list[Mapping[str, Any]]:
        """All parts of the file of this kind."""
        parts = {} if self.file is None else self.file.parts
        return [part for part in parts.values() if part.get("kind") == kind]

    def optimizer_state(self) -> tuple[CheckpointEvent, Mapping[str, Any]] | None:
        """The save that holds the state of an optimizer, and its record.

        This is the file that was read, or another file of the same folder that this run writes and
        has never read. The latter does not count if the run wrote the read file itself before: no
        earlier run need have saved both.
        """
        part = self.part("optimizer")
        if self.file is not None and part is not None:
            return self.file, part
        if self.file is None or not self.is_earlier or self.file.path not in self.saved:
            return None
        save, part = self._apart.get(_folder(self.file.path), (None, {}))
        return None if save is None or save.path in self._read or self.restored else (save, part)

    def observe(self, event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            self._checkpoint(event)
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self.fresh[event.id] = event
        elif isinstance(event, CallEvent) and event.owner is not None:
            owner = event.owner
            family = event.family or event.api
            if family == Families.OPTIMIZER_STEP:
                self.stepped.setdefault(owner, event)
                created = self.fresh.pop(owner, None)
                if created is not None:
                    self.first_steps[owner] = created
            elif family == Families.SCHEDULER_CREATED:
                if event.args.get("last_epoch") not in (-1, None):
                    self.continued.add(owner)
                self.schedules[owner] = event
            elif family == Families.SCHEDULER_STEP:
                self._is_advanced = True
                if self.model is None:
                    self.continued.add(owner)

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op == "save":
            if event.path is not None:
                self.saved.add(event.path)
                part = event.parts.get("optimizer")
                if event.parts.keys() == {"optimizer"} and isinstance(part, Mapping):
                    self._apart[_folder(event.path)] = event, part
        elif event.op == "load":
            # A checkpoint may be read once for each of its parts.
            if self.file is None or event.path is None or event.path != self.file.path:
                self.model = self.optimizer = self.scheduler = None
                self.stepped, self.first_steps, self.loaded = {}, {}, {}
                self.again = set()
            self.file, self.is_earlier = event, event.path not in self.saved
            self._read.add(event.path or "")
        elif "optim" in (event.target or "") and "lr_scheduler" not in (event.target or ""):
            if self._is_own(event):
                return
            if event.owner in self.loaded and event.owner not in self.stepped:
                self.again.add(event.owner)
            self.optimizer = self.loaded[event.owner] = event
            self.restored = True
        elif "lr_scheduler" in (event.target or ""):
            if self._is_advanced or brings_back(event):  # otherwise it got its initial state
                self.scheduler = event
        elif event.changed and event.matched is not None:
            self.model = event

    def _is_own(self, event: CheckpointEvent) -> bool:
        """Whether an optimizer gets its own state, not that of the file that was read."""
        if brings_back(event) or event.owner in self.loaded:
            return False
        part = self.part("optimizer")  # the state of SGD without momentum has no entries
        return part is None or bool(part.get("entries")) or bool(event.entries)
