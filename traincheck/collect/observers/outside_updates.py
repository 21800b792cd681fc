"""Changes that no optimizer makes: to parameters between its steps or instead of it, and gradients.

Between steps only a few are observed, on the CPU. No call shows an update by the program itself,
such as ``p.data.add_(p.grad, alpha=-lr)``, so parameters are scanned when a step ends, as long as
no optimizer has stepped. No signal ends the last step of a run. It is complete if the program has
updated as many variables in it as in the step before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.tensors.fingerprint import fingerprint, holds_zeros, is_at_hand
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.change_detector import is_on_device
from traincheck.collect.tracking.live_objects import parameters_of
from traincheck.collect.tracking.staggered_scan import NO_ROOTS
from traincheck.collect.tracking.tracked_model import TrackedModel, this_thread
from traincheck.schema.observations.gradients import ExternalWrites, UnclearedGradients

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from traincheck.collect.context import Recorder

# The first steps, then some that do not fit any period of a loop. Otherwise a change of weights in
# every 5th step could be in all observed steps.
_FIRST, _EVERY = 4, 11
_LARGEST = 1 << 22  # observed elements of an optimizer
_MOST_NAMES = 20


class _Seen(NamedTuple):
    """The state after a step of an optimizer."""

    step: int
    digests: dict[str, str | None]


class ExternalWriteObserver(Observer):
    """Compares parameters after a step of an optimizer and before the next one.

    seen: the states of optimizers that are compared before their next step.
    """

    produces: ClassVar = (ExternalWrites,)
    hook: ClassVar = Hook.OPTIMIZER_STEP

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.seen: dict[str, _Seen] = {}

    def before_step(self, em: Emitter, owner: str, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        seen = self.seen.pop(owner, None)
        step = self._session.clock.step
        if seen is None or step is None or seen.step != step - 1:
            return
        now = self._digests(owner, optimizer)
        if not now:
            return
        names = [name for name, digest in now.items() if seen.digests.get(name, digest) != digest]
        write(em, ExternalWrites(owner, tuple(names[:_MOST_NAMES]), len(names)))

    def after_step(self, owner: str, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        step = self._session.clock.step
        if step is not None and _is_due(step + 1):
            self.seen[owner] = _Seen(step, self._digests(owner, optimizer))

    def _digests(self, owner: str, optimizer: torch.optim.Optimizer) -> dict[str, str | None]:
        """Digests of the parameters that only this optimizer updates, up to a limit."""
        session = self._session
        holders = Counter(
            id(parameter)
            for _, other in session.live.live_optimizers()
            for parameter in parameters_of(other)
        )
        found: dict[str, str | None] = {}
        left = _LARGEST
        for name, parameter in session.tracker.named_parameters(owner, optimizer):
            if holders[id(parameter)] != 1 or not is_at_hand(parameter):
                continue
            if parameter.is_leaf and parameter.grad is None:  # such as an average by hand
                continue
            left -= parameter.numel()
            if left < 0:
                break
            found[name] = fingerprint(parameter)
        return found


def _is_due(step: int) -> bool:
    return step <= _FIRST or not step % _EVERY


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
