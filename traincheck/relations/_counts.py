"""How often each call happens from one update to the next. Counts; judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from traincheck.relations._variables import is_judged, is_skipped
from traincheck.schema.events import CallEvent, Families, StepEvent

_F = Families
Key = tuple[str, str | None]  # an API or family, and whose call it is where owners are told apart
BACKWARD: Key = (_F.BACKWARD, None)
_OWNED = frozenset({_F.OPTIMIZER_STEP, _F.SCHEDULER_STEP})
# What a loop does, whether gradients are recorded or not.
LANDMARKS = _OWNED | {
    _F.BACKWARD,
    _F.ZERO_GRAD,
    _F.SCALE,
    _F.SCALER_STEP,
    _F.SCALER_UPDATE,
    _F.UNSCALE,
    _F.CLIP_NORM,
    _F.CLIP_VALUE,
}
_UPDATES = frozenset({_F.OPTIMIZER_STEP, _F.SCALER_STEP})
_MODES = frozenset({_F.TRAIN, _F.EVAL})
_INIT = "torch.nn.init."
# Whoever counts must hear of these, to know where a window ends and when a model is evaluated.
FRAME = frozenset({_F.BACKWARD, *_UPDATES, *_MODES})


def key_of(event: CallEvent) -> Key:
    """What a call counts as: a landmark by its family, anything else by its own name."""
    family = event.family
    if family in LANDMARKS:
        return family, event.owner if family in _OWNED else None
    return event.api, None


@dataclass(frozen=True, slots=True)
class Page:
    """One window. first: nothing is known of what came before it.

    is_free: a closure ran as often as its optimizer liked, or a scaler left the step out.
    """

    step: int | None
    rank: int
    counts: Counter[Key]
    event: StepEvent
    first: bool
    is_free: bool

    @property
    def backwards(self) -> int:
        return self.counts[BACKWARD]


@dataclass(slots=True)
class Windows:
    """Cuts the calls of a process where its optimizers step.

    Not where steps end: what a loop does between an update and the first sign of the next
    iteration (draw a batch, step a schedule) belongs to no side for certain, and is counted with
    what follows it. Calls that evaluate are left out.

    wanted: keys to be counted; None for all.
    """

    wanted: Collection[Key] | None = None
    _now: Counter[Key] = field(default_factory=Counter)  # since the last update
    _done: Counter[Key] = field(default_factory=Counter)  # up to it
    _backward_ns: int = -1  # when the last backward began
    _is_first: bool = True
    _is_free: bool = False
    _has_trained: bool = False
    _is_evaluating: bool = False

    def call(self, event: CallEvent) -> Key | None:
        """Count a call; its key, if it counts."""
        family = event.family or event.api
        if event.exception is not None or event.api.startswith(_INIT):
            return None
        if family in _MODES:
            self._is_evaluating = family == _F.EVAL and self._has_trained
            return None
        key = key_of(event)
        if family in LANDMARKS:
            if family == _F.BACKWARD:
                self._backward_ns = event.start_ns
                self._has_trained = True
            elif family == _F.OPTIMIZER_STEP and self._backward_ns >= event.start_ns:
                self._is_free = True
        elif self._is_evaluating or not event.grad_enabled or event.stage in ("init", "checkpoint"):
            return None
        if self.wanted is None or key in self.wanted or key == BACKWARD:
            self._now[key] += 1
        if family in _UPDATES:
            self._done.update(self._now)
            self._now.clear()
        return key

    def step(self, event: StepEvent) -> Page | None:
        """The window that ends with this step; None when it says nothing."""
        if not is_judged(event):
            self._now.clear()
            self._done.clear()
            self._is_first, self._is_free = True, False
            return None
        if event.counters.get("optimizer_step", 0) or event.counters.get("scaler_step", 0):
            counts, self._done = self._done, Counter()
        else:  # no update was made: the step itself is the window
            counts, self._now = self._now, Counter()
        page = Page(
            step=event.step,
            rank=event.rank,
            counts=counts,
            event=event,
            first=self._is_first,
            is_free=self._is_free or is_skipped(event),
        )
        self._is_first = self._is_free = False
        return page
