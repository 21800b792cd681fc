"""Hand-made traces of several ranks: each is a TraceBuilder, merged as a reader merges them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from tests.builders import MLP, TraceBuilder
from traincheck.readings.distributed.rank_steps import SYNC
from traincheck.schema.events import CollectiveEvent, Event, StateEvent
from traincheck.schema.torch_api import DDP_FORWARD, DDP_INIT, Families
from traincheck.store.order import merge_ranks


class RankBuilder(TraceBuilder):
    """One rank. Parameters have the same content on every rank, but for those that are `apart`.

    Attributes:
        apart: parameters that from now on have other content on each rank.
    """

    def __init__(self, rank: int = 0, world: int = 2, **options: Any) -> None:
        super().__init__(rank=rank, **options)
        self.apart: set[str] = set()
        self.wrapped = False
        self.sync = True
        self._versions: dict[str, int] = {}
        self._collectives = 0
        self.process(world_size=world)

    def wrap(self, *, leave_out: Iterable[str] = (), **args: Any) -> RankBuilder:
        """The model is put into DistributedDataParallel."""
        self.wrapped = True
        known = {n: v for n, v in self.parameters().items() if v.trainable}
        names = [n for n in known if n not in set(leave_out)]
        ids = [known[n].identity for n in names]
        given = {"parameters": names, "ids": ids, "ignored": [], "group_size": 2, **args}
        self.call(DDP_INIT, module="Net", args=given, where="train.py:30")
        return self

    def go_apart(self, *names: str) -> RankBuilder:
        """From now on this rank has its own content in ``names``, or in all parameters."""
        self.apart.update(names or self.parameters())
        return self

    def collective(self, op: str = "all_reduce", **fields: Any) -> RankBuilder:
        given = {"number": self._collectives, "shape": [4, 4], "dtype": "float32", **fields}
        self.add(CollectiveEvent, op=op, **given)
        self._collectives += 1
        return self

    def root_forward(self, model: Any, grad: bool, buffers: bool, batch_size: int) -> None:
        if not self.wrapped:
            super().root_forward(model, grad, buffers, batch_size)
            return
        self.count(forward=grad)
        self.call(
            DDP_FORWARD,
            family=Families.MODULE,
            module=model.name,
            root=True,
            args={SYNC: self.sync},
            grad_enabled=grad,
            training=model.training,
        )

    def add(self, event_type: Any, **fields: Any) -> TraceBuilder:
        super().add(event_type, **fields)
        event = self.events[-1]
        if isinstance(event, StateEvent) and event.role == "parameter" and event.summary:
            version = self._versions[event.name] = self._versions.get(event.name, 0) + 1
            own = self.rank + 1 if event.name in self.apart else 0
            digest = f"xxh3-128:{zlib.crc32(repr((event.name, version, own)).encode()):032x}"
            summary = event.summary.replace(fingerprint=digest)
            self.edit(event, summary=summary)
        return self


def merged(*ranks: TraceBuilder | list[Event]) -> list[Event]:
    """The events of all ranks, in the order of a replay."""
    parts = [part if isinstance(part, list) else part.build() for part in ranks]
    batches = merge_ranks((part[0].rank, iter([part])) for part in parts)
    return [event for batch in batches for event in batch]


def two_ranks(play: Callable[[RankBuilder], Any], *, wrap: bool = True) -> list[Event]:
    """Two ranks with a model and an optimizer; ``play`` says what each does."""
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP)
        if wrap:
            rank.wrap()
        rank.optimizer()
        play(rank)
        ranks.append(rank)
    return merged(*ranks)
