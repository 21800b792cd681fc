"""Losses passed to backward(), in mean losses, and how far targets are ahead of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traincheck.facts.distributed.ranks import RankSteps
from traincheck.facts.losses import LOSSES, OVER_CLASSES
from traincheck.facts.steps import is_judged, is_skipped
from traincheck.relations.readings.loss_scale import LossScale
from traincheck.relations.readings.reading import OF_TERMS
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import Families

BACKWARDS, RANKS, TOKENS = "backwards", "ranks", "tokens"
KINDS = (BACKWARDS, RANKS, TOKENS)
_SEVERAL = 2
_MOST_WAITING = 256  # steps that one rank may be ahead of another


@dataclass(frozen=True, slots=True)
class LossShare:
    """One number of a step.

    Attributes:
        value: mean losses passed to backward(), for each rank if the kind is RANKS; or positions
            that targets are ahead of tokens.
        parts: the number of backwards, or ranks, that it comes from.
    """

    kind: str
    value: float
    parts: int
    event: StepEvent
    call: CallEvent | None = None


@dataclass(slots=True)
class ProcessLosses:
    """Follows one process."""

    _losses: LossScale = field(default_factory=LossScale)
    _lines: set[str | None] = field(default_factory=set)  # lines that call backward
    _shifts: dict[int, CallEvent] = field(default_factory=dict)

    def call(self, event: CallEvent) -> None:
        """A call ended."""
        if event.exception is not None:
            return
        if event.api in LOSSES:
            if event.grad_enabled:
                self._losses.loss(event)
                self._scan(event)
        elif event.api == Families.BACKWARD:
            self._losses.backward(event)
            self._lines.add(event.where)
        elif event.api == Families.SCALE:
            self._losses.scaled()

    def _scan(self, event: CallEvent) -> None:
        target = event.args.get("target")
        stats = target.get("stats") if isinstance(target, Mapping) else None
        # Targets that are not ahead may be of an autoencoder: *bounded* covers them
        if event.api in OVER_CLASSES and event.stage == "train" and stats and stats.get("shifted"):
            self._shifts.setdefault(int(stats["shifted"]), event)

    def grouped(self, event: MarkEvent) -> None:
        """There are several ranks."""
        self._losses.grouped(event)

    def step(self, event: StepEvent) -> Iterator[LossShare]:
        """A step ended. For ranks, the value is the share of this rank."""
        lines, self._lines = self._lines, set()
        shifts, self._shifts = self._shifts, {}
        for reading in self._losses.step(event) if not is_skipped(event) else ():
            if reading.key.name == OF_TERMS:
                continue
            parts = _parts(event) if len(lines) == 1 else 0
            if parts >= _SEVERAL:
                yield LossShare(BACKWARDS, reading.value, parts, event)
            yield LossShare(RANKS, reading.value, 1, event)
        if shifts and is_judged(event):  # heads for later tokens come beside the first
            ahead = min(shifts)
            yield LossShare(TOKENS, ahead, 1, event, shifts[ahead])


def _parts(event: StepEvent) -> int:
    """The number of batches of an update, each with its own forward; else 0."""
    counters = event.counters
    size = counters.get("backward", 0)
    is_sum = counters.get("zero_grad", 0) <= 1 and counters.get("optimizer_step", 0) == 1
    return size if is_sum and size == counters.get("forward", 0) else 0


class LossShares:
    """Follows all processes of a run."""

    def __init__(self) -> None:
        self._steps = RankSteps(counts_all=True)
        self._updates: dict[tuple[int, str], ProcessLosses] = defaultdict(ProcessLosses)
        self._waiting: dict[int | None, dict[int, float]] = {}  # step -> rank -> its share

    def observe(self, event: Event) -> list[LossShare]:
        """The numbers that ``event`` completes."""
        if isinstance(event, StateEvent):
            return []
        updates = self._updates[event.rank, event.stream.partition("-")[0]]
        found: list[LossShare] = []
        if isinstance(event, CallEvent):
            updates.call(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.PROCESS_GROUP:
            updates.grouped(event)
        elif isinstance(event, StepEvent):
            for share in updates.step(event):
                if share.kind == RANKS:
                    self._waiting.setdefault(event.step, {})[event.rank] = share.value
                else:
                    found.append(share)
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
        self._steps.observe(event)
        for step in self._steps.ready:
            shares = self._waiting.pop(step.end.step, {})
            ranks = len(step.ranks)
            if step.is_judged and step.wrapped and len(shares) == ranks >= _SEVERAL:
                found.append(LossShare(RANKS, sum(shares.values()) / ranks, ranks, step.end))
        return found
