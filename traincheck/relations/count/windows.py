"""Calls from one update to the next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.facts.steps import is_judged, is_skipped
from traincheck.relations.count.keys import (
    BACKWARD,
    COLLECTIVE,
    DETACH,
    INIT,
    LANDMARKS,
    LOOP_DETACH,
    MODES,
    OPENINGS,
    REDUNDANT_ZERO_GRAD,
    ROOT,
    UPDATES,
    Key,
    key_of,
)
from traincheck.schema.events import CallEvent, CollectiveEvent, StepEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary

_MOST_SINCE = 1 << 16


@dataclass(frozen=True, slots=True)
class CallWindow:
    """The calls from one update to the next.

    Attributes:
        step: the step in which the window began.
        first: the calls before it are not known.
        is_free: a closure ran several times, or a scaler skipped the step.
    """

    step: int | None
    rank: int
    counts: Counter[Key]
    event: StepEvent
    first: bool
    is_free: bool

    @property
    def forwards(self) -> int:
        """Calls of models, and of losses that are modules."""
        return self.counts[ROOT]

    @property
    def backwards(self) -> int:
        return self.counts[BACKWARD]

    def begins_like(self, other: CallWindow) -> bool:
        """Whether gradients are cleared before the first forward, or after it, as in ``other``."""
        return self._opening == other._opening

    @property
    def _opening(self) -> Key | None:
        return next((key for key in self.counts if key in OPENINGS), None)

    def asked(self, params: Mapping[str, Any]) -> int:
        """The number of calls that a claim requires in this window."""
        times: int = params["times"]
        return times * self.backwards if params["per"] == Families.BACKWARD else times


@dataclass(slots=True)
class CallWindows:
    """Cuts the calls of a process where its optimizers step.

    Windows do not end where steps end: the calls between an update and the first sign of the next
    iteration (draw a batch, step a schedule) are counted with the calls that follow. Calls of an
    evaluation are left out. So are calls within backward: activation checkpointing repeats some.

    wanted: keys to be counted; None for all.
    """

    wanted: Collection[Key] | None = None
    _now: Counter[Key] = field(default_factory=Counter)  # since the last update
    _done: Counter[Key] = field(default_factory=Counter)  # up to it
    _backward_ns: tuple[int, int] = (-1, -1)  # when the last two backwards began
    # Calls since the last, and their start; the latest if there are too many
    _since: deque[tuple[int, Key]] = field(default_factory=lambda: deque(maxlen=_MOST_SINCE))
    _has_forward: bool = False  # a model has computed something since the last backward
    _began: StepEvent | None = None  # the first step of the window, once it has ended
    _is_first: bool = True
    _is_free: bool = False
    _has_trained: bool = False
    _is_evaluating: bool = False
    _searching: set[str | None] = field(default_factory=set)  # optimizers that call one so
    # Optimizers that were cleared and have not stepped since -> whether a backward came since
    _cleared: dict[str | None, bool] = field(default_factory=dict)

    def call(self, event: CallEvent) -> Key | None:
        """Count a call; its key, if it counts."""
        family = event.family or event.api
        if event.exception is not None or event.api.startswith(INIT):
            return None
        if family in MODES:
            if family != Families.EVAL or "." not in (event.module or ""):  # a part may be frozen
                self._is_evaluating = family == Families.EVAL and self._has_trained
            return None
        key = key_of(event)
        if family in LANDMARKS:
            if family == Families.BACKWARD:
                self._backward_ns = (self._backward_ns[1], event.start_ns)
                self._has_trained, self._has_forward = True, False
                self._cleared = dict.fromkeys(self._cleared, True)
                self._take_back(event.start_ns)
            elif family == Families.OPTIMIZER_STEP:
                self._optimizer_step(event)
        elif self._is_left_out(event):
            return None
        self._has_forward |= event.root
        for counted_as in self._keys(event, key):
            self._now[counted_as] += 1
            if family not in LANDMARKS:
                self._since.append((event.start_ns, counted_as))
        if family in UPDATES:
            self._cleared.pop(event.owner, None)
            self._cleared.pop(None, None)  # of a module: any step applies its gradients
            self._done.update(self._now)
            self._now.clear()
            self._since.clear()
        return key

    def _keys(self, event: CallEvent, key: Key) -> list[Key]:
        """All keys that a call counts for."""
        wanted, module, api = self.wanted, event.module, key[0]
        found = [ROOT] if event.root else []
        if wanted is not None and key not in wanted and key != BACKWARD:
            return found
        found.append(key)
        if api == DETACH:
            if event.parent is None:
                found.append(LOOP_DETACH)
        elif api == Families.ZERO_GRAD:
            if self._cleared.get(event.owner):
                found.append(REDUNDANT_ZERO_GRAD)
            self._cleared[event.owner] = False
        if wanted is not None and module is not None and (api, module) in wanted:
            found.append((api, module))
        return found

    def _is_left_out(self, event: CallEvent) -> bool:
        if self._is_evaluating or not event.grad_enabled or event.stage in ("init", "checkpoint"):
            return True
        return event.api == DETACH and not self._may_cut(event)

    def _may_cut(self, event: CallEvent) -> bool:
        """Whether a detach can stop a gradient.

        It cannot for a loss that is logged, for gradients, or for parameters after an update.
        """
        tensor = tensor_summary(event.args.get("self"))
        is_deaf = tensor is not None and not (tensor.requires_grad and tensor.shape)
        return not is_deaf and (event.parent is not None or self._has_forward)

    def _optimizer_step(self, event: CallEvent) -> None:
        if self._backward_ns[0] >= event.start_ns:
            self._searching.add(event.owner)  # a closure, called more than once
        # Or the mode was not set back: the calls are not known
        self._is_free |= event.owner in self._searching or self._is_evaluating

    def _take_back(self, start_ns: int) -> None:
        """Remove calls within a backward that began then: they were counted before it ended."""
        while self._since and self._since[-1][0] >= start_ns:
            key = self._since.pop()[1]
            self._now[key] -= 1
            if not self._now[key]:
                del self._now[key]
        self._since.clear()

    def collective(self, event: CollectiveEvent) -> None:
        """Count a collective operation, also in an evaluation."""
        key = (COLLECTIVE + event.op, None)
        if self.wanted is None or key in self.wanted:
            self._now[key] += 1

    def step(self, event: StepEvent) -> CallWindow | None:
        """The window that ends with this step; None if it cannot be judged."""
        if not is_judged(event):
            # Calls since its update count in the next step, and some are not known
            is_torn = event.is_gap or self._is_free or bool(self._now or self._done)
            for known in (self._now, self._done, self._since, self._cleared):
                known.clear()
            self._is_first, self._began = True, None
            self._is_free = is_torn and not event.recorded
            self._is_evaluating &= not any(event.modes.values())  # `train` may have been missed
            return None
        if self._began is None:
            self._began = event
        if not (event.counters.get("optimizer_step", 0) or event.counters.get("scaler_step", 0)):
            return None  # no update was made: the next one has these calls, too
        counts, self._done = self._done, Counter()
        window = CallWindow(
            step=self._began.step,
            rank=event.rank,
            counts=counts,
            event=event,
            first=self._is_first,
            is_free=self._is_free or is_skipped(event),
        )
        self._is_first = self._is_free = False
        self._began = None
        return window
