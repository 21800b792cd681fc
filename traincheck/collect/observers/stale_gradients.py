"""Gradients of an unrecorded update that still exist when the next backward pass begins.

Scans show the gradients that a step leaves to the next one. A recorded step after an unrecorded one
has nothing to compare with. Without this, a missing zero_grad would be found in consecutive steps
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.tensors.fingerprint import holds_zeros
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.change_detector import is_on_device
from traincheck.schema.observations.gradients import UnclearedGradients

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from traincheck.collect.context import Recorder


class StaleGradientObserver(Observer):
    """Scans the remaining gradients when a recorded step follows unrecorded ones."""

    produces: ClassVar = (UnclearedGradients,)
    hook: ClassVar = Hook.GRADIENT_SCAN

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._owners: AbstractSet[str] = frozenset()
        self._names: list[str] = []
        if not session.sampling.is_all:
            session.hooks.at_step_end.add(self._tell)

    def glance(self, em: Emitter, after: int) -> None:
        """Look at gradients before a backward pass. after: its span, which is about to begin."""
        session, detector = self._session, self._session.tracker.detector
        owners, session.applied = session.applied, frozenset()
        detector.unchanged.clear()
        found = session.tracker.scans.scan_gradients_before_backward(em, after)
        if owners:
            self._owners, detector.kept_after = owners, after
            self._names = [
                variable.name
                for variable, tensor in found
                if tensor is not None
                and id(variable) in detector.unchanged
                and not is_on_device(tensor)
                and not holds_zeros(tensor)
            ]

    def _tell(self, em: Emitter) -> None:
        """A step ends: now it is known of devices, too."""
        detector = self._session.tracker.detector
        names = sorted({*self._names, *detector.uncleared})
        self._names, detector.uncleared, detector.kept_after = [], [], 0
        if names:
            write(em, UnclearedGradients(tuple(sorted(self._owners)), tuple(names)))
