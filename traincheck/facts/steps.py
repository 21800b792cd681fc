"""What the end of a training step tells of it."""

from __future__ import annotations

from traincheck.schema.events import StepEvent


def is_judged(event: StepEvent) -> bool:
    """Whether what is absent in this step really did not happen, in a step that trained."""
    counters = event.counters
    return (
        event.recorded
        and event.complete
        and (counters.get("backward", 0) > 0 or counters.get("optimizer_step", 0) > 0)
    )


def is_skipped(event: StepEvent) -> bool:
    """Whether a gradient scaler left out an optimizer step: then no update is due."""
    return event.counters.get("scaler_step", 0) > event.counters.get("optimizer_step", 0)
