"""What was loaded from a checkpoint, and what was not, up to the next step. Judges nothing."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from traincheck.facts.resumptions import brings_back
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.torch_api import Families

RESUME = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
    kinds=frozenset({"checkpoint", "optimizer", "step"}),
)


def _folder(path: str | None) -> str:
    return posixpath.dirname((path or "").replace("\\", "/"))


class Resume:
    """Follows one process.

    Attributes:
        file: the last checkpoint file that was read, since which the others are counted.
        model: the load of a model that changed something since.
        optimizer, scheduler: loads since. loaded: those of optimizers by id, None where not known.
        again: optimizers that were loaded once more before they had stepped.
        saved: paths that this run writes. is_earlier: the file was there before.
        restored: whether an optimizer's state was ever loaded.
        fresh: optimizers that have not stepped, as they were created.
        stepped: steps of optimizers since the file was read, by id.
        schedules: creations of schedulers, by id of their optimizer.
        continued: optimizers whose schedule began at a given epoch, or had run before.
    """

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
        self._is_advanced = False  # a scheduler was stepped
        self._read: set[str] = set()
        self._apart: dict[str, tuple[CheckpointEvent, Mapping[str, Any]]] = {}  # by folder
        self.fresh: dict[str, OptimizerEvent] = {}
        self.stepped: dict[str, CallEvent] = {}
        self.first_steps: dict[str, OptimizerEvent] = {}
        self.schedules: dict[str, CallEvent] = {}
        self.continued: set[str] = set()

    def part(self, kind: str) -> Mapping[str, Any] | None:
        """What the file holds of one kind, the first."""
        return next(iter(self.parts(kind)), None)

    def parts(self, kind: str) -> list[Mapping[str, Any]]:
        """All that the file holds of one kind."""
        parts = {} if self.file is None else self.file.parts
        return [part for part in parts.values() if part.get("kind") == kind]

    def optimizer_state(self) -> tuple[CheckpointEvent, Mapping[str, Any]] | None:
        """Where the state of an optimizer is, and what is told of it.

        In the file that was read, or in one that this run writes beside it and has never read; the
        latter not where the run has written the first before: no earlier run need have had both.
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
            self._call(event.owner, event)

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op == "save":
            if event.path is not None:
                self.saved.add(event.path)
                part = event.parts.get("optimizer")
                if event.parts.keys() == {"optimizer"} and isinstance(part, Mapping):
                    self._apart[_folder(event.path)] = event, part
        elif event.op == "load":
            # A checkpoint may be read once for each part of it.
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
            if self._is_advanced or brings_back(event):  # else it was given what it began with
                self.scheduler = event
        elif event.changed and event.matched is not None:
            self.model = event

    def _is_own(self, event: CheckpointEvent) -> bool:
        """Whether an optimizer is given what it had, and not what the file that was read holds."""
        if brings_back(event) or event.owner in self.loaded:
            return False
        part = self.part("optimizer")  # SGD without momentum has a state without entries
        return part is None or bool(part.get("entries")) or bool(event.entries)

    def _call(self, owner: str, event: CallEvent) -> None:
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
