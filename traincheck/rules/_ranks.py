"""Books over all ranks of a run, closed step by step. Judges nothing.

A step is handed to the rules when every rank has ended it, whatever the order in which the events
of different ranks come. So a run that is followed and one that is replayed are told the same, and
of a rank that died early nothing is claimed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.provider import Fact, Facts
from traincheck.schema.apis import DDP_FORWARD, DDP_HOOK, DDP_INIT, JOIN, Families, Marks
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    CallEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Violation

FSDP_FORWARD = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel.forward"
SYNC = "require_backward_grad_sync"  # argument of DDP_FORWARD: whether it arms the exchange

_KEPT = frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP, Families.CLIP_NORM, Families.MODULE})
_COMPARABLE = ("xxh3-128:", "mix-128:", "xxh3:")  # digests of whole tensors, not of a shard or part
_LOCAL = ("localsgd", "local_sgd", "noop_hook", "diloco", "hierarchical")
_MOST_WAITING = 256  # steps that one rank may be ahead of another

REPLICAS = Needs(
    calls=frozenset(
        {DDP_INIT, DDP_HOOK, JOIN, DDP_FORWARD, Families.MODULE, Families.OPTIMIZER_STEP}
    ),
    states=frozenset({"parameter@step", "parameter@ranks"}),
    kinds=frozenset({"collective", "mark", "optimizer", "step"}),
)
COLLECTIVES = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"collective", "mark", "step"})
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrap:
    """A model in DistributedDataParallel.

    parameters: names of those whose gradients it exchanges. ids: their identities. ignored: names
    it was told to leave alone.
    """

    event: CallEvent
    module: str
    parameters: frozenset[str]
    ids: Mapping[str, int]
    ignored: frozenset[str]
    group_size: int | None

    @classmethod
    def of(cls, call: CallEvent) -> Wrap | None:
        """What a DDP construction tells; None when it does not tell enough."""
        names, ids = call.args.get("parameters"), call.args.get("ids")
        if call.module is None or not isinstance(names, list) or not isinstance(ids, list):
            return None
        size = call.args.get("group_size")
        return cls(
            event=call,
            module=call.module,
            parameters=frozenset(names),
            ids=dict(zip(names, ids)),
            ignored=frozenset(call.args.get("ignored") or ()),
            group_size=size if isinstance(size, int) else None,
        )

    def covers(self, name: str) -> bool:
        """Whether a variable belongs to the wrapped model and is not left alone on purpose."""
        return name.startswith(f"{self.module}.") and name not in self.ignored


@dataclass(slots=True)
class Page:
    """What one rank did in one step.

    calls: landmarks and outermost module calls, in order. states: the last look at each parameter
    that changed.
    """

    calls: list[CallEvent] = field(default_factory=list)
    collectives: list[CollectiveEvent] = field(default_factory=list)
    states: dict[str, StateEvent] = field(default_factory=dict)
    is_gap: bool = False
    end: StepEvent | None = None

    @property
    def is_whole(self) -> bool:
        """Whether what is absent really did not happen."""
        return self.end is not None and self.end.complete and not self.is_gap

    def family(self, family: str) -> list[CallEvent]:
        """Calls of one family that ran to their end."""
        return [
            call
            for call in self.calls
            if (call.family or call.api) == family and call.exception is None
        ]

    def updates(self) -> list[CallEvent]:
        return self.family(Families.OPTIMIZER_STEP)

    def forwards(self) -> list[CallEvent]:
        """Training calls of a DDP wrapper."""
        return [c for c in self.calls if c.api == DDP_FORWARD and c.grad_enabled]

    def reduced_gradients(self) -> set[str]:
        """Parameters that are reduced in all ranks of the job after backward and before the update.

        There it is their gradients; averages of weights come after the update.
        """
        first = min((c.seq for c in self.family(Families.BACKWARD)), default=None)
        last = max((c.seq for c in self.updates()), default=None)
        if first is None or last is None:
            return set()
        return {
            c.variable
            for c in self.collectives
            if c.op == "all_reduce"
            and c.group == "world"
            and c.variable is not None
            and first < c.seq < last
        }

    @property
    def reduces_by_hand(self) -> bool:
        """Whether the script exchanges more than single numbers by itself."""
        return any(
            c.op in ("all_reduce", "all_gather", "broadcast", "all_gather_into_tensor", "reduce")
            and _numel(c.shape) > 1
            for c in self.collectives
        )


@dataclass(slots=True)
class Rank:
    """What is known of one training process.

    known: the last look at each parameter. begun: the first one. held: what each optimizer holds,
    by name. aside: steps so far that had nothing to do with what ranks train together.
    """

    wraps: dict[str, Wrap] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)
    begun: dict[str, StateEvent] = field(default_factory=dict)
    aside: int = 0
    known: dict[str, StateEvent] = field(default_factory=dict)
    is_local: bool = False  # ranks are meant to go apart until an average, or to take other steps
    is_sharded: bool = False  # FSDP: a name stands for a piece

    def is_aside(self, page: Page) -> bool:
        """Whether a step trained only what is in no wrapper: a probe on the features, on one rank.

        It has no place among the steps of the other ranks.
        """
        updates = page.updates()
        if not self.wraps or not updates or page.collectives or page.forwards():
            return False
        names = frozenset[str]().union(*(self.held.get(c.owner or "", ()) for c in updates))
        return bool(names) and not any(w.covers(n) for w in self.wraps.values() for n in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step of all ranks, each of which has ended it."""

    step: int
    pages: Mapping[int, Page]
    ranks: Mapping[int, Rank]

    @property
    def is_whole(self) -> bool:
        return all(page.is_whole for page in self.pages.values())

    @property
    def first_rank(self) -> int:
        return min(self.pages)

    def wrap_of(self, name: str) -> Wrap | None:
        """The wrapper that keeps a parameter equal on all ranks, when all of them have one."""
        found = None
        for rank in self.ranks.values():
            if rank.is_local:
                return None
            wrap = next((w for w in rank.wraps.values() if w.covers(name)), None)
            if wrap is None or wrap.group_size not in (None, len(self.ranks)):
                return None
            found = found or wrap
        return found

    def different(self) -> dict[str, dict[int, StateEvent]]:
        """Parameters that changed in this step and are not the same on all ranks, by name."""
        names = {name for page in self.pages.values() for name in page.states}
        return {name: looks for name in sorted(names) if (looks := self._unequal(name)) is not None}

    def agree(self) -> set[str]:
        """Parameters that changed on all ranks and are equal afterwards."""
        common = set.intersection(*(set(page.states) for page in self.pages.values()))
        return {name for name in common if self._digests(name) and self._unequal(name) is None}

    def began_equal(self, name: str) -> bool | None:
        """Whether a parameter had one content when it was first seen; None if that is not known."""
        digests = self._digests(name, {n: rank.begun for n, rank in self.ranks.items()})
        return None if digests is None else len(set(digests.values())) == 1

    def reduced_gradients(self) -> set[str]:
        """Parameters whose gradients every rank reduces: between backward and the update."""
        return set.intersection(*(page.reduced_gradients() for page in self.pages.values()))

    def _unequal(self, name: str) -> dict[int, StateEvent] | None:
        digests = self._digests(name)
        if digests is None or len(set(digests.values())) == 1:
            return None
        return {rank: self.ranks[rank].known[name] for rank in digests}

    def _digests(
        self, name: str, looks: Mapping[int, Mapping[str, StateEvent]] | None = None
    ) -> dict[int, str] | None:
        """The content on each rank, the last one if none is given; None if not comparable."""
        found: dict[int, str] = {}
        forms = set()
        for number, rank in self.ranks.items():
            look = (rank.known if looks is None else looks[number]).get(name)
            summary = None if look is None else look.summary
            if summary is None or not (summary.fingerprint or "").startswith(_COMPARABLE):
                return None
            if not _numel(summary.shape):
                return None
            found[number] = str(summary.fingerprint)
            forms.add((summary.dtype, summary.shape, found[number].partition(":")[0]))
        return found if len(forms) == 1 else None


class RankBooks(Fact):
    """The books of one run: what each rank did, up to the last step that all have ended.

    ready: the steps that are complete on all ranks by the end of a step that came last.
    """

    def __init__(self) -> None:
        self._world = 1
        self._open: dict[tuple[int, str], Page] = defaultdict(Page)
        self._facts: dict[tuple[int, str], Rank] = defaultdict(Rank)
        self._order: dict[int, list[str]] = defaultdict(list)  # training processes of a rank
        # By turn (which of a rank's training processes) and step
        self._waiting: dict[tuple[int, int], dict[int, tuple[Page, Rank]]] = defaultdict(dict)
        self.ready: Sequence[RunStep] = ()

    @property
    def incomplete(self) -> str | None:
        """Why steps could not be compared; None when all could, or there is one rank only."""
        if self._world == 1 or not self._waiting:
            return None
        seen = {rank for pages in self._waiting.values() for rank in pages}
        missing = sorted(set(range(self._world)) - seen)
        first = min(step for _, step in self._waiting)
        who = f"rank {', '.join(map(str, missing))}" if missing else "some ranks"
        return f"from step {first} on, {who} left no more steps to compare with"

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self.ready = ()
        if isinstance(event, MarkEvent):
            size = event.world_size
            if event.text in (Marks.PROCESS, Marks.PROCESS_GROUP) and size is not None:
                self._world = max(self._world, size)
        elif event.step is None or self._world == 1:
            pass  # a DataLoader worker, or nobody to compare with
        elif isinstance(event, StepEvent):
            self.ready = tuple(self._end(event))
        else:
            self._enter((event.rank, event.stream.partition("-")[0]), event)

    def _enter(self, key: tuple[int, str], event: Event) -> None:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.change not in ("unknown", "flags"):
                self._open[key].states[event.name] = event
                begun = self._facts[key].begun
                if event.change == "gone":
                    begun.pop(event.name, None)
                else:
                    begun.setdefault(event.name, event)
        elif isinstance(event, CollectiveEvent):
            self._open[key].collectives.append(event)
        elif isinstance(event, CallEvent):
            self._enter_call(key, event)
        elif isinstance(event, OptimizerEvent):
            rank = self._facts[key]
            rank.is_local |= _is_local(event.cls)
            rank.held[event.id] = frozenset(n for group in event.groups for n in group.params)

    def _enter_call(self, key: tuple[int, str], call: CallEvent) -> None:
        if call.api == DDP_INIT:
            wrap = Wrap.of(call)
            if wrap is not None:
                self._facts[key].wraps[wrap.module] = wrap
        elif call.api == DDP_HOOK:
            if _is_local(str(call.args.get("hook"))):
                self._facts[key].is_local = True
        elif call.api == JOIN:  # a rank whose inputs have ended waits for the others
            self._facts[key].is_local |= call.args.get("enable") is True
        elif (call.family or call.api) in _KEPT:
            if call.api == FSDP_FORWARD:
                self._facts[key].is_sharded = True
            if call.root or call.api == DDP_FORWARD or call.family != Families.MODULE:
                self._open[key].calls.append(call)

    def _end(self, event: StepEvent) -> Iterator[RunStep]:
        pid = event.stream.partition("-")[0]
        key = (event.rank, pid)
        page = self._open[key]
        if not event.recorded:
            page.is_gap = True
            if not event.complete:
                return  # events were lost; the step goes on
        page.end = event
        del self._open[key]
        rank = self._facts[key]
        if rank.is_aside(page):
            rank.aside += 1
            self._open[key].states.update(page.states)
            return
        order = self._order[event.rank]
        if pid not in order:
            order.append(pid)
        if event.step is None:
            return
        place = (order.index(pid), event.step - rank.aside)
        waiting = self._waiting[place]
        waiting[event.rank] = (page, rank)
        if len(waiting) == self._world:
            del self._waiting[place]
            yield self._close(min(e.step for e in _ends(waiting) if e.step is not None), waiting)
        elif len(self._waiting) > _MOST_WAITING:
            del self._waiting[min(self._waiting)]

    def _close(self, step: int, parts: Mapping[int, tuple[Page, Rank]]) -> RunStep:
        ordered = sorted(parts.items())
        for _, (page, rank) in ordered:
            if page.is_gap:
                rank.known.clear()  # what changed meanwhile was not seen
            for name, look in page.states.items():
                if look.change == "gone":
                    rank.known.pop(name, None)
                else:
                    rank.known[name] = look
        return RunStep(
            step=step,
            pages={number: page for number, (page, _) in ordered},
            ranks={number: rank for number, (_, rank) in ordered},
        )


class RankMonitor(ABC):
    """A monitor that judges whole steps of all ranks."""

    uses: ClassVar[Sequence[type[Fact]]] = (RankBooks,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    books: RankBooks

    def __init__(self) -> None:
        self.triggered = 0

    def bind(self, facts: Facts) -> None:
        self.books = facts.of(RankBooks)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent):
            return ()
        return [found for step in self.books.ready for found in self.judge(step)]

    def finish(self) -> Sequence[Violation]:
        """Nothing: a step that not all ranks have ended proves nothing."""
        return ()

    @abstractmethod
    def judge(self, step: RunStep) -> Sequence[Violation]:
        """Violations that a step of all ranks proves."""


def _ends(parts: Mapping[int, tuple[Page, Rank]]) -> list[StepEvent]:
    return [page.end for page, _ in parts.values() if page.end is not None]


def _is_local(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _LOCAL)


def _numel(shape: Sequence[int] | None) -> int:
    count = 1
    for size in shape or ():
        count *= size
    return count
