"""The forward passes of a step: modes, dropout, normalization.

One entry for each outermost module, mode and grad mode, however often it was called.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.modal_modules import BATCH_NORM, is_dropping
from traincheck.schema.events import CallEvent

Batch = tuple[str, int, int]  # loader, epoch, index

_MOST_WAITING = 10_000


@dataclass(slots=True)
class Forward:
    """Calls of one outermost module in one mode.

    Attributes:
        call: the first call.
        dropping, idle: the first call of an active or inactive dropout, by the path of its parent.
        norms: calls of batch norm, by the path of its parent.
        fresh: number of calls with another batch than the call before.
        loaders: loaders of these batches.
    """

    call: CallEvent
    count: int = 0
    fresh: int = 0
    dropping: dict[str, CallEvent] = field(default_factory=dict)
    idle: dict[str, CallEvent] = field(default_factory=dict)
    norms: dict[str, CallEvent] = field(default_factory=dict)
    loaders: set[str] = field(default_factory=set)
    last: Batch | None = None

    @property
    def path(self) -> str:
        """Path of the called module."""
        return self.call.module or ""

    @property
    def is_training(self) -> bool:
        return self.call.training is True

    @property
    def active(self) -> list[str]:
        """Paths of the dropout and batch normalization modules that act as in training."""
        active = {p for p, c in self.dropping.items() if c.training is not False}
        return sorted(active | {p for p, c in self.norms.items() if c.args.get("training") is True})

    def covers(self, name: str) -> bool:
        """Whether a variable is below the module that was called."""
        return name.startswith(f"{self.path}.")


@dataclass(slots=True)
class Forwards:
    """The forward passes of one step. waiting: calls whose outermost module has not ended."""

    entries: dict[tuple[str, bool, bool], Forward] = field(default_factory=dict)
    waiting: list[CallEvent] = field(default_factory=list)

    def wait(self, call: CallEvent) -> None:
        """A call that may belong to an outermost module that has not ended."""
        if len(self.waiting) >= _MOST_WAITING:  # no enclosing module
            self.waiting.clear()
        self.waiting.append(call)

    def root(self, call: CallEvent, batch: Batch | None) -> None:
        """An outermost module was called: waiting calls that began after it are within it."""
        key = (call.module or "", call.training is True, call.grad_enabled)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Forward(call)
        entry.count += 1
        if batch is not None and batch != entry.last:
            entry.fresh += 1
            entry.last = batch
            entry.loaders.add(batch[0])
        for inner in self.waiting:
            if inner.span > call.span:
                _enter(entry, inner)
        self.waiting.clear()


def _enter(entry: Forward, call: CallEvent) -> None:
    path = call.module or entry.path
    if call.api == BATCH_NORM:
        entry.norms.setdefault(path, call)
        return
    on = is_dropping(call)
    if on is not None:
        (entry.dropping if on else entry.idle).setdefault(path, call)
