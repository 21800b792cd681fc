"""End a step where the training loop says that it is over, before the first sign of the next one.

For whoever must know what a step has shown before the loop goes on, such as before it saves.
"""

from __future__ import annotations

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.session.session import Session


def settle(session: Session) -> None:
    """End the current step if its iteration is complete; otherwise do nothing.

    What the loop does until the next iteration, such as an evaluation, then belongs to the next
    step. Steps that are not recorded are left alone: they show nothing.
    """
    if not session.recording.on:
        return
    session.steps.catch_up()
    if session.steps.is_between:
        session.steps.end()
        watch_for_boundary(session)
