"""The view of an event when calls within modules, or state scans, are sampled.

Claims about them are decided in the steps that were recorded in full, and on calls in evaluation.
In all other steps absence proves nothing, as in steps that sampling skips.
"""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.schema.claims import Schedule
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.protocols import Decider
from traincheck.schema.trace_terms import EVAL_STAGE


def in_sampled_view(event: Event, schedule: Schedule) -> Event | None:
    """``event`` as checks of sampled calls or scans get it; None where they do not."""
    if schedule.includes(event.step):
        return event
    if isinstance(event, CallEvent):
        # A call with grad enabled belongs to the training loop, whatever the stage.
        return event if event.stage == EVAL_STAGE and not event.grad_enabled else None
    return event.skipped if isinstance(event, StepEvent) and event.recorded else event


class SampledDecider:
    """A decider of claims about sampled calls or scans."""

    def __init__(self, decider: Decider, schedule: Schedule) -> None:
        self._decider = decider
        self._schedule = schedule

    def observe(self, event: Event) -> Iterable[tuple[int, Example]]:
        seen = in_sampled_view(event, self._schedule)
        return () if seen is None else self._decider.observe(seen)

    def finish(self) -> Iterable[tuple[int, Example]]:
        return self._decider.finish()
