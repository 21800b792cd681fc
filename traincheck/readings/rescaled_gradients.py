"""Accumulated gradients that the program multiplies by one factor between two backward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincheck.readings import recorded
from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import WrittenGradients
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_CHANGING = frozenset(
    {Families.CLIP_NORM, Families.CLIP_VALUE, Families.UNSCALE, Families.SCALER_STEP}
)
_ENDING = frozenset({Families.OPTIMIZER_STEP, Families.ZERO_GRAD})  # of an accumulation
_LANDMARKS = _ENDING | _CHANGING | {Families.BACKWARD}
_ALIKE = 1e-3  # spread of the ratios: products of half precision are rounded
_FEWEST = 2  # gradients that show that the factor is one for all

RESCALED = needs_of(WrittenGradients) | Needs(
    calls=frozenset({Families.BACKWARD}) | _CHANGING | _ENDING,
    states=frozenset({"gradient@backward"}),
    kinds=frozenset({"step"}),
    stats=sampled("gradient"),
)


@dataclass(frozen=True, slots=True)
class Rescaling:
    """All gradients are multiplied by one factor, and then more are added.

    Attributes:
        event: the mark that shows it.
        factor: norm after over norm before, the same for all gradients.
        names: of the gradients.
        passes: backward passes that accumulated before it, since the gradients were cleared.
        last: the last of these passes.
        next: the pass that follows.
    """

    event: MarkEvent
    factor: float
    names: tuple[str, ...]
    passes: int
    last: CallEvent
    next: CallEvent


class RescaledGradients(RunState):
    """Finds them in each step. Clipping and unscaling are excluded.

    Attributes:
        ended: those of the step that ended last.
        windows: backward passes of this step that add to earlier ones, and whose gradients have
            known norms.
    """

    def __init__(self) -> None:
        self.ended: Sequence[Rescaling] = ()
        self.windows = 0
        self._calls: list[CallEvent] = []
        self._looks: list[StateEvent] = []  # gradients with norms
        self._marks: list[tuple[MarkEvent, WrittenGradients]] = []

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            is_known = event.after is not None and isinstance(recorded.norm(event), float)
            if is_known and event.role == "gradient":
                self._looks.append(event)
        elif isinstance(event, CallEvent):
            if (event.family or event.api) in _LANDMARKS:
                self._calls.append(event)
        elif isinstance(event, StepEvent):
            is_whole = event.recorded and event.complete
            self.ended = tuple(self._rescalings()) if is_whole else ()
            backwards = sum((c.family or c.api) == Families.BACKWARD for c in self._calls)
            self.windows = backwards - 1 if is_whole and self._looks and backwards > 1 else 0
            self._calls, self._marks, self._looks = [], [], []
        elif isinstance(event, MarkEvent):
            found = observed(event, WrittenGradients)
            if found is not None:
                self._marks.append((event, found))

    def _rescalings(self) -> Iterator[Rescaling]:
        calls = sorted(self._calls, key=lambda call: call.span)
        for event, mark in self._marks:
            window = _window(calls, mark.after)
            following = next((c for c in calls if c.span == mark.after), None)
            factor = self._factor(mark)
            if window and following is not None and factor is not None:
                yield Rescaling(event, factor, mark.names, len(window), window[-1], following)

    def _factor(self, mark: WrittenGradients) -> float | None:
        """The ratio of the norms of all present gradients, if it is one."""
        before: dict[str, float] = {}  # the last norm of each
        for look in self._looks:
            if look.after is not None and look.after < mark.after:
                before[look.name] = recorded.norm(look) or 0.0
        present = {name for name, norm in before.items() if norm}
        after = dict(zip(mark.names, mark.norms))
        if len(present) < _FEWEST or not present <= after.keys():
            return None
        ratios = [after[name] / before[name] for name in present]
        low, high = min(ratios), max(ratios)
        return high if low > 0 and high / low - 1 < _ALIKE else None


def _window(calls: Sequence[CallEvent], span: int) -> list[CallEvent]:
    """The backward passes that accumulated before ``span``; none if the last was post-processed."""
    window: list[CallEvent] = []
    for call in calls:
        if call.span >= span:
            break
        family = call.family or call.api
        if family == Families.BACKWARD:
            window.append(call)
        else:  # clipped and unscaled gradients are no plain sum from here on
            window.clear()
    return window
