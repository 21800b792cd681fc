"""Whether a sampler draws random numbers for the order of an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from traincheck.collect.moments.calls import Link
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.worker_rng import states
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.data import EpochOrder

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_EPOCHS = 4  # of a sampler
_SAMPLERS = 64
_DRAWN = "_traincheck_order"  # attribute of an iterator, until its first batch is fetched

_States = dict[str, str]


class EpochOrderObserver(Observer):
    """Compares generators before and after the first indices of an epoch."""

    produces: ClassVar = (EpochOrder,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._epochs: Counter[int] = Counter()

    def install(self, patcher: Patcher) -> None:
        """Listen to the function that draws the indices of a batch."""
        self.listen(self._session.moments.draws, self._link())
        self.listen(self._session.hooks.after_batch, self._tell)

    def _link(self) -> Link:
        session = self._session

        def draw(original: Callable[..., Any], iterator: Any, args: Any, kwargs: Any) -> Any:
            if iterator._num_yielded or session.is_worker or not session.recording.on:
                return original(iterator)
            em = session.local.em or session.emitter()
            before = guarded(em, self._before, iterator)
            drawn = original(iterator)
            if before is not None:
                guarded(em, self._after, iterator, before)
            return drawn

        return hidden(draw)

    def _before(self, iterator: Any) -> _States | None:
        """States of the generators; None if this is not the first index of one of the first epochs.

        Workers fetch ahead: an iterator draws several batches before it gives the first.
        """
        sampler = iterator._index_sampler
        if _DRAWN in vars(iterator) or len(self._epochs) > _SAMPLERS:
            return None
        self._epochs[id(sampler)] += 1
        return states(sampler) if self._epochs[id(sampler)] <= _EPOCHS else None

    def _after(self, iterator: Any, before: _States) -> None:
        after = states(iterator._index_sampler)
        changed = [name for name, state in after.items() if before.get(name, state) != state]
        drawn = [name.replace("dataset", "sampler", 1) for name in changed]
        if _is_to_shuffle(iterator._index_sampler):
            drawn.append("shuffle")
        setattr(iterator, _DRAWN, tuple(drawn))

    def _tell(self, iterator: Any, batch: Any) -> None:
        """A batch of training was fetched."""
        drawn = vars(iterator).pop(_DRAWN, None)
        known = getattr(iterator, "_traincheck", None)
        if drawn is not None and known is not None:
            em = self._session.local.em or self._session.emitter()
            write(em, EpochOrder(known[0], drawn))


def _is_to_shuffle(sampler: Any) -> bool:
    """Whether a DistributedSampler, or one inside a batch sampler, is to shuffle."""
    inner = getattr(sampler, "sampler", sampler)
    return "Distributed" in type(inner).__name__ and getattr(inner, "shuffle", False) is True
