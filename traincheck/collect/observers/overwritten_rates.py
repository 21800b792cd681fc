"""Learning rates that the program writes and a scheduler replaces before any update uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch.optim import lr_scheduler

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.tensors.reading import is_a, own
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.live_objects import rates_of
from traincheck.collect.tracking.optimizer_groups import innermost, owner_of
from traincheck.schema.observations.loads import OverwrittenRates

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MOST = 16  # observations of a run
# They compute a rate from the base rate and the position. Others multiply the present rate.
_ABSOLUTE = (
    lr_scheduler.LambdaLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
)


class OverwrittenRateObserver(Observer):
    """Compares the rates of groups before and after a step of a scheduler."""

    produces: ClassVar = (OverwrittenRates,)
    hook: ClassVar = Hook.SCHEDULER_STEP

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._written: tuple[int, list[float]] | None = None
        self._count = 0

    def before_step(self, em: Emitter, args: tuple[Any, ...]) -> None:
        """A scheduler is about to step: remember rates that it has not set itself."""
        self._written = None
        scheduler = args[0]
        if self._count >= _MOST or not is_a(scheduler, _ABSOLUTE):
            return
        optimizer, last = innermost(own(scheduler).get("optimizer")), own(scheduler).get("_last_lr")
        if optimizer is not None and type(last) is list:
            now = rates_of(optimizer)
            if now and now != last and len(now) == len(last):
                self._written = id(scheduler), now

    def after_step(self, em: Emitter, scheduler: Any) -> None:
        """It has stepped: record the rates that it replaced, if the last update had others."""
        written, self._written = self._written, None
        if written is None or written[0] != id(scheduler):
            return
        optimizer = innermost(scheduler.optimizer)
        live = self._session.live
        owner = owner_of(live.live_optimizers(), optimizer)
        used = live.used_rates.get(owner or "")
        if optimizer is None or owner is None or not used or len(used) != len(written[1]):
            return
        now = rates_of(optimizer)
        if any(w not in (u, n) for w, u, n in zip(written[1], used, now)):
            self._count += 1
            found = tuple(written[1]), tuple(used), tuple(now)
            write(em, OverwrittenRates(owner, dotted(type(scheduler)), *found, where()))
