"""What variables hold after each step, on all ranks of a run. Judges nothing.

A step is given when every rank has ended it, whatever the order in which the events of different
ranks come. So a run that is followed and one that is replayed are told the same, and of a rank that
died early nothing is claimed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.relations._variables import is_judged
from traincheck.schema.apis import DDP_HOOK, DDP_INIT, JOIN, Families, Marks
from traincheck.schema.events import CallEvent, Event, MarkEvent, StateEvent, StepEvent
from traincheck.schema.values import TensorSummary, number

_EXACT = ("xxh3-128:", "mix-128:", "xxh3:")  # of whole tensors, not of a shard or a part
_MOST_WAITING = 256  # steps that one rank may be ahead of another

Key = tuple[str, str]  # role and name
Content = tuple[str, tuple[int, ...], str]  # dtype, shape and fingerprint


def content(summary: TensorSummary | None) -> Content | None:
    """What can be compared with another tensor; None where the look was not exact."""
    if summary is None or not (summary.fingerprint or "").startswith(_EXACT):
        return None
    if 0 in summary.shape:
        return None
    return summary.dtype, tuple(summary.shape), str(summary.fingerprint)


@dataclass(slots=True)
class Page:
    """What one process saw in one step.

    looks: the last content of each variable that changed. norms: what clipping found, call by call.
    """

    looks: dict[Key, Content | None] = field(default_factory=dict)
    norms: list[float | None] = field(default_factory=list)
    end: StepEvent | None = None
    is_gap: bool = False

    @property
    def is_whole(self) -> bool:
        return self.end is not None and self.end.complete and not self.is_gap

    @property
    def is_judged(self) -> bool:
        return self.end is not None and not self.is_gap and is_judged(self.end)


@dataclass(slots=True)
class RankFacts:
    """What is known of one rank by now. wrapped: parameters that DDP keeps equal."""

    known: dict[Key, Content | None] = field(default_factory=dict)
    wrapped: set[str] = field(default_factory=set)
    is_apart: bool = False  # how gradients are exchanged, or in how many steps, is its own way


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step of all ranks.

    by_rank: what each holds after it; counters: what each called; norms: what each clipped by.
    """

    end: StepEvent
    is_judged: bool
    is_whole: bool
    changed: frozenset[Key]
    by_rank: Mapping[int, RankFacts]
    counters: Mapping[int, Mapping[str, int]]
    norms: Mapping[int, Sequence[float | None]]

    def compare(self, key: Key) -> list[int] | None:
        """Ranks that hold another content than the first; None where that cannot be told."""
        found: dict[int, Content] = {}
        for rank, facts in self.by_rank.items():
            one = facts.known.get(key)
            if one is None:
                return None
            found[rank] = one
        first = next(iter(found.values()))
        if any(one[:2] != first[:2] for one in found.values()):
            return None
        return [rank for rank, one in found.items() if one != first]

    def clipped(self) -> list[dict[int, float]]:
        """What each rank has found when it clipped, for each time that all of them did."""
        if len(set(map(len, self.norms.values()))) > 1:
            return []
        times = zip(*([(rank, n) for n in found] for rank, found in self.norms.items()))
        known = [{rank: n for rank, n in time if n is not None} for time in times]
        return [found for found in known if len(found) == len(self.norms)]

    @property
    def wrapped(self) -> set[str]:
        """Parameters that every rank has given to DistributedDataParallel."""
        if any(facts.is_apart for facts in self.by_rank.values()):
            return set()
        return set.intersection(*(facts.wrapped for facts in self.by_rank.values()))


class RunSteps:
    """Follows all ranks and gives each step when the last of them has ended it."""

    def __init__(self) -> None:
        self._world = 1
        self._open: dict[tuple[int, str], Page] = defaultdict(Page)
        self._facts: dict[tuple[int, str], RankFacts] = defaultdict(RankFacts)
        self._turns: dict[int, list[str]] = defaultdict(list)  # training processes of a rank
        self._waiting: dict[tuple[int, int], dict[int, tuple[Page, RankFacts]]] = {}

    def observe(self, event: Event) -> Iterator[RunStep]:
        """Enter ``event``; the steps that are complete by it."""
        if isinstance(event, MarkEvent):
            size = event.world_size
            if event.text in (Marks.PROCESS, Marks.PROCESS_GROUP) and size is not None:
                self._world = max(self._world, size)
            return
        if self._world == 1 or event.step is None:
            return
        key = (event.rank, event.stream.partition("-")[0])
        if isinstance(event, StateEvent):
            if event.change not in ("flags", "unknown"):
                seen = content(event.summary)
                self._open[key].looks[event.role, event.name] = seen
        elif isinstance(event, CallEvent):
            if Families.CLIP_NORM in (event.api, event.family):
                self._open[key].norms.append(number(event.result))
            else:
                self._call(self._facts[key], event)
        elif isinstance(event, StepEvent):
            yield from self._end(key, event)

    def _call(self, facts: RankFacts, call: CallEvent) -> None:
        if call.api == DDP_HOOK or (call.api == JOIN and call.args.get("enable") is True):
            facts.is_apart = True
        elif call.api == DDP_INIT:
            size = call.args.get("group_size")
            if size in (None, self._world):
                ignored: Any = call.args.get("ignored") or ()
                names: Any = call.args.get("parameters") or ()
                facts.wrapped |= set(names) - set(ignored)

    def _end(self, key: tuple[int, str], event: StepEvent) -> Iterator[RunStep]:
        rank, pid = key
        page = self._open[key]
        page.is_gap |= not event.recorded
        if not event.recorded and not event.complete:
            return  # events were lost; the step goes on
        page.end = event
        del self._open[key]
        if pid not in self._turns[rank]:
            self._turns[rank].append(pid)
        place = (self._turns[rank].index(pid), event.step or 0)
        waiting = self._waiting.setdefault(place, {})
        waiting[rank] = (page, self._facts[key])
        if len(waiting) == self._world:
            del self._waiting[place]
            yield _close(event, waiting)
        elif len(self._waiting) > _MOST_WAITING:
            del self._waiting[min(self._waiting)]


def _close(event: StepEvent, parts: Mapping[int, tuple[Page, RankFacts]]) -> RunStep:
    ordered = sorted(parts.items())
    for _, (page, facts) in ordered:
        if page.is_gap:
            facts.known.clear()  # what changed meanwhile was not seen
        facts.known.update(page.looks)
    changed = frozenset(key for _, (page, _) in ordered for key in page.looks)
    return RunStep(
        end=event,
        is_judged=all(page.is_judged for _, (page, _) in ordered),
        is_whole=all(page.is_whole for _, (page, _) in ordered),
        changed=changed,
        by_rank={rank: facts for rank, (_, facts) in ordered},
        norms={rank: page.norms for rank, (page, _) in ordered},
        counters={rank: page.end.counters for rank, (page, _) in ordered if page.end is not None},
    )
