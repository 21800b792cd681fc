"""Passes over loaders, and which of them were complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from traincheck.schema.events import BatchEvent
from traincheck.schema.marks import EVAL_STAGE

# It draws all indices from 0 to the last one in random order: omitted ones can be recognized
_SHUFFLED = "torch.utils.data.sampler.RandomSampler"
_AS_LONG = 0.9  # of the longest pass: batches may be made by their length in tokens


@dataclass(slots=True)
class _Pass:
    """The last pass over a loader. drawn: number of samples; most: size of the largest batch."""

    epoch: int
    sampler: str | None
    batches: int = 0
    drawn: int = 0
    most: int = 0


class Passes:
    """Passes of training, by loader.

    Attributes:
        batches: number of all batches.
        ended: number of complete passes before another one.

    An iterator may be left before its end, as by ``next(iter(loader))``. A shuffled pass is
    complete if it drew as many samples as the indices show, except for a dropped last batch. Any
    other pass is complete if it has more than one batch, and about as many as earlier passes.
    """

    def __init__(self) -> None:
        self.batches: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._now: dict[str, _Pass] = {}
        self._longest: Counter[str] = Counter()  # pass
        self._top: Counter[str] = Counter()  # index

    def enter(self, event: BatchEvent) -> None:
        """The next batch."""
        if event.stage == EVAL_STAGE:
            return
        loader = event.loader
        now = self._now.get(loader)
        if now is None or now.epoch != event.epoch:
            if now is not None:
                self.ended[loader] += self._is_whole(loader, now)
                self._longest[loader] = max(self._longest[loader], now.batches)
            now = self._now[loader] = _Pass(event.epoch, event.sampler)
        now.batches = event.index + 1
        now.drawn += event.drawn
        now.most = max(now.most, event.drawn)
        self.batches[loader] += 1
        self._top[loader] = max(self._top[loader], *event.indices, 0)

    def whole(self, loader: str) -> int:
        """Number of complete passes, including the last one if it is complete."""
        now = self._now.get(loader)
        return self.ended[loader] + (now is not None and self._is_whole(loader, now))

    def _is_whole(self, loader: str, last: _Pass) -> bool:
        if last.sampler == _SHUFFLED and last.drawn:
            dropped = last.most - 1 if last.batches > 1 else 0
            return last.drawn + dropped > self._top[loader]
        return last.batches > 1 and last.batches >= self._longest[loader] * _AS_LONG
