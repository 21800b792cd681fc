"""End a step when the training loop declares it over, before the first signal of the next one.

For callers that need the findings of a step before the loop continues, such as before a save.
"""

from __future__ import annotations

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.session.session import Session


def settle(session: Session) -> None:
    """End the current step if its iteration is complete; otherwise do nothing.

    Everything until the next iteration, such as an evaluation, then belongs to the next step. Steps
    that are not recorded are not ended: they show nothing.
    """
    if not session.recording.on:
        return
    session.steps.catch_up()
    if session.steps.is_between:
        session.steps.end()
        watch_for_boundary(session)
