"""What is there of an event where calls within modules, or looks, are in some training steps only.

Claims about these are asked of such steps, and of calls in evaluation; in all others what is absent
proves nothing, as where sampling skips steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.schema.apis import EVAL_STAGE
from traincheck.schema.claims import Schedule
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.protocols import Decider


def thinned(event: Event, schedule: Schedule) -> Event | None:
    """``event`` as a check of such calls or looks is told it; None where it is not."""
    if schedule.takes(event.step):
        return event
    if isinstance(event, CallEvent):
        # With grad enabled it is of the loop: what evaluates by then is no model's training
        return event if event.stage == EVAL_STAGE and not event.grad_enabled else None
    return event.skipped if isinstance(event, StepEvent) and event.recorded else event


class Thinned:
    """A decider of claims about such calls or looks."""

    def __init__(self, decider: Decider, schedule: Schedule) -> None:
        self._decider = decider
        self._schedule = schedule

    def observe(self, event: Event) -> Iterable[tuple[int, Example]]:
        less = thinned(event, self._schedule)
        return () if less is None else self._decider.observe(less)

    def finish(self) -> Iterable[tuple[int, Example]]:
        return self._decider.finish()
