"""Updates by the program itself, such as ``p.data.add_(p.grad, alpha=-lr)``.

No call shows them, so parameters are scanned when a step ends, as long as no optimizer has stepped.
No signal ends the last step of a run. It is complete if the program has updated as many variables
in it as in the step before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.tracking.staggered_scan import NO_ROOTS
from traincheck.collect.tracking.tracked_model import TrackedModel, this_thread

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_LOOKS_WITHOUT_UPDATE = 12  # in a row


class ManualUpdateObserver:
    """Scans parameters at the end of steps, until an optimizer steps."""

    def __init__(self, session: Recorder) -> None:
        self._session = session
        wants = session.tracker.wants
        self._is_wanted = wants("parameter", "hand") or wants("parameter", "step")
        self._left = _LOOKS_WITHOUT_UPDATE if self._is_wanted else 0
        self._usual = 0  # number of changes in the last step with an update
        self._last = (-1, 0)  # a step, and the changes found in it by scans of models that died

    def install(self) -> None:
        """Begin to scan."""
        if self._is_wanted:
            self._session.hooks.at_step_end.add(self.look)
            self._session.hooks.is_last_over = self.is_over

    def stop(self) -> None:
        """An optimizer steps: scans follow its steps."""
        self._left = 0
        self._session.tracker.on_death = None
        self._session.hooks.at_step_end.leave(self.look)

    def look(self, em: Emitter) -> None:
        """A step ends."""
        if not self._is_due():
            return
        changes = self._died() + self._changes(em)
        if changes:
            self._usual, self._left = changes, _LOOKS_WITHOUT_UPDATE
            self._session.tracker.on_death = self.died
        else:
            self._left -= 1

    def is_over(self, em: Emitter) -> bool:
        """The run ends: whether its last step has had its update."""
        if not self._is_due() or not self._usual:
            return False
        return bool(guarded(em, self._has_updated, em))

    def _has_updated(self, em: Emitter) -> bool:
        return self._died() + self._changes(em) >= self._usual

    def died(self, root: TrackedModel) -> None:
        """A model is about to be freed, as at the end of ``main()``: its tensors still exist."""
        session = self._session
        em = session.local.em
        if em is None or em.busy or root.thread != this_thread() or not self._is_due():
            return
        guarded(em, self._scan_last, em, root)  # raised in a finalizer, it would be on stderr

    def _scan_last(self, em: Emitter, root: TrackedModel) -> None:
        session, before = self._session, em.seq
        session.tracker.scans.scan_last(em, em.next_span - 1, root)
        self._last = session.steps.step, self._died() + em.seq - before

    def _is_due(self) -> bool:
        session = self._session
        return bool(
            self._left
            and session.steps.counters["backward"]
            and session.recording.on
            and session.recording.scans
        )

    def _died(self) -> int:
        step, changes = self._last
        return changes if step == self._session.steps.step else 0

    def _changes(self, em: Emitter) -> int:
        """Number of variables that differ."""
        tracker, before = self._session.tracker, em.seq
        tracker.scans.scan_parameters(em, em.next_span - 1, NO_ROOTS)
        if tracker.detector.pending:  # on a device: the step is about to be written
            tracker.detector.resolve(em)
        return em.seq - before
