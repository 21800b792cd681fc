"""Properties of a training step from its end event."""

from __future__ import annotations

from traincheck.schema.events import StepEvent


def is_judged(event: StepEvent) -> bool:
    """Whether absence is evidence in this step: it trained and was recorded completely."""
    counters = event.counters
    return (
        event.recorded
        and event.complete
        and (counters.get("backward", 0) > 0 or counters.get("optimizer_step", 0) > 0)
    )


def is_skipped(event: StepEvent) -> bool:
    """Whether a gradient scaler skipped an optimizer step: no update is due then."""
    return event.counters.get("scaler_step", 0) > event.counters.get("optimizer_step", 0)
