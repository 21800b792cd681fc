"""The session that records this process, if any. Calls of the user's code find it here.

Does not import torch: `traincheck.step()` runs in programs that may never import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder


class Current:
    """Holds the only session of a process: two would wrap each other's wrappers."""

    def __init__(self) -> None:
        self.session: Recorder | None = None
        self.watch: object | None = None  # the owner in this process; None for a launched run

    def enter_stage(self, stage: str) -> None:
        """Set the stage explicitly, until a call shows another one."""
        session = self.session
        if session is None:
            return
        em = session.local.em or session.emitter()
        if em.busy:
            return
        em.busy = True
        try:
            session.stage(em, stage)
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self.enter_stage, error)
        finally:
            em.busy = False


CURRENT = Current()
