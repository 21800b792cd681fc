"""Parameters between two steps of an optimizer: those that other code wrote to.

Only a few steps are observed, on the CPU.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.tensors.fingerprint import fingerprint, is_at_hand
from traincheck.collect.tensors.reading import groups_of
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.gradients import ExternalWrites

if TYPE_CHECKING:
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
            for group in groups_of(other)
            for parameter in group["params"]
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
