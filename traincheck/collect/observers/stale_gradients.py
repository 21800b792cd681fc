"""Which gradients an update that was not recorded has left, when the next backward pass begins.

Looks tell what a step leaves to the next one. Where a step that is recorded follows one that is
not, they have nothing to compare with: a missing zero_grad would be seen in steps in a row only.
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
    """Told when a recorded step follows others, it looks at the gradients that are still there."""

    produces: ClassVar = (UnclearedGradients,)
    hook: ClassVar = Hook.GRADIENT_SCAN

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._owners: AbstractSet[str] = frozenset()
        self._names: list[str] = []
        if not session.sampling.is_all:
            session.hooks.at_step_end.append(self._tell)

    def glance(self, em: Emitter, after: int) -> None:
        """Look at gradients before a backward pass. after: its span, which is about to begin."""
        session, looker = self._session, self._session.tracker.looker
        owners, session.applied = session.applied, frozenset()
        looker.still.clear()
        found = session.tracker.scans.glance_gradients(em, after)
        if owners:
            self._owners, looker.kept_after = owners, after
            self._names = [
                variable.name
                for variable, tensor in found
                if tensor is not None
                and id(variable) in looker.still
                and not is_on_device(tensor)
                and not holds_zeros(tensor)
            ]

    def _tell(self, em: Emitter) -> None:
        """A step ends: now it is known of devices, too."""
        looker = self._session.tracker.looker
        names = sorted({*self._names, *looker.kept})
        self._names, looker.kept, looker.kept_after = [], [], 0
        if names:
            write(em, UnclearedGradients(tuple(sorted(self._owners)), tuple(names)))
