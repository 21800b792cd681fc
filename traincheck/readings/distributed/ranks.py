"""The steps of all ranks of a run, and the content of their variables after each step.

A step is complete when every rank has ended it, regardless of the order in which the events of
different ranks come. So a followed run and a replayed one give the same results, and nothing is
claimed about a rank that died early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from traincheck.readings.distributed.rank_steps import (
    FSDP_FORWARD,
    Content,
    Key,
    Rank,
    RankStep,
    Wrap,
    content,
)
from traincheck.readings.provider import RunState
from traincheck.schema.events import (
    CallEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import DDP_FORWARD, DDP_HOOK, DDP_INIT, JOIN, Families

_KEPT = frozenset({Families.BACKWARD, Families.OPTIMIZER_STEP, Families.CLIP_NORM, Families.MODULE})
_LOCAL = ("localsgd", "local_sgd", "noop_hook", "diloco", "hierarchical")
_SAME = frozenset({"unknown", "flags"})  # changes that tell nothing about the content
_MOST_WAITING = 256  # steps that one rank may be ahead of another


@dataclass(frozen=True, kw_only=True)  # no slots: several rules ask for what is cached
class RunStep:
    """One step of all ranks, each of which has ended it.

    Attributes:
        step: its lowest number.
        end: the end of the last rank.
        changed: variables that changed on any rank.
    """

    step: int
    end: StepEvent
    pages: Mapping[int, RankStep]
    ranks: Mapping[int, Rank]
    changed: frozenset[Key]
    _compared: dict[Key, list[int] | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_complete(self) -> bool:
        return all(page.is_complete for page in self.pages.values())

    @property
    def is_judged(self) -> bool:
        return all(page.is_judged for page in self.pages.values())

    @property
    def counters(self) -> Mapping[int, Mapping[str, int]]:
        """The counters of each rank."""
        return {rank: p.end.counters for rank, p in self.pages.items() if p.end is not None}

    @property
    def first_rank(self) -> int:
        return min(self.pages)

    def wrap_of(self, name: str) -> Wrap | None:
        """The wrapper that keeps a parameter equal on all ranks, if all of them have one."""
        found = None
        for rank in self.ranks.values():
            if rank.is_local:
                return None
            wrap = next((w for w in rank.wraps.values() if w.covers(name)), None)
            if wrap is None or wrap.group_size not in (None, len(self.ranks)):
                return None
            found = found or wrap
        return found

    @property
    def wrapped(self) -> set[str]:
        """Parameters that every rank has passed to DistributedDataParallel."""
        if any(rank.is_apart for rank in self.ranks.values()):
            return set()
        return set.intersection(*(self._wrapped_by(rank) for rank in self.ranks.values()))

    def _wrapped_by(self, rank: Rank) -> set[str]:
        wraps = [w for w in rank.wraps.values() if w.group_size in (None, len(self.ranks))]
        return {name for wrap in wraps for name in wrap.parameters - wrap.ignored}

    def clipped(self) -> list[dict[int, float]]:
        """The norms of each rank, for each clipping that all of them made."""
        norms = {rank: page.norms() for rank, page in self.pages.items()}
        if len(set(map(len, norms.values()))) > 1:
            return []
        times = zip(*([(rank, n) for n in found] for rank, found in norms.items()))
        known = [{rank: n for rank, n in time if n is not None} for time in times]
        return [found for found in known if len(found) == len(norms)]

    def compare(self, key: Key) -> list[int] | None:
        """Ranks whose content differs from the first; None if not known."""
        if key in self._compared:
            return self._compared[key]
        found = self._contents({n: rank.known.get(key) for n, rank in self.ranks.items()})
        others = None
        if found is not None:
            first = next(iter(found.values()))
            others = [rank for rank, one in found.items() if one != first]
        self._compared[key] = others
        return others

    @cached_property
    def different(self) -> Mapping[str, Mapping[int, StateEvent]]:
        """Parameters that changed in this step and are not the same on all ranks, by name."""
        keys = sorted(key for key in self.changed if key[0] == "parameter")
        return {
            key[1]: {number: rank.known[key] for number, rank in self.ranks.items()}
            for key in keys
            if self.compare(key)
        }

    @cached_property
    def agree(self) -> frozenset[str]:
        """Parameters that changed on all ranks and are equal afterwards."""
        common = set.intersection(*(set(page.states) for page in self.pages.values()))
        return frozenset(
            key[1] for key in common if key[0] == "parameter" and self.compare(key) == []
        )

    def began_equal(self, name: str) -> bool | None:
        """Whether a parameter was equal on all ranks in its first scan; None if not known."""
        found = self._contents({n: rank.begun.get(name) for n, rank in self.ranks.items()})
        return None if found is None else len(set(found.values())) == 1

    def reduced_gradients(self) -> set[str]:
        """Parameters whose gradients every rank reduces: between backward and the update."""
        return set.intersection(*(page.reduced_gradients() for page in self.pages.values()))

    def _contents(self, looks: Mapping[int, StateEvent | None]) -> dict[int, Content] | None:
        """The content on each rank in these scans; None if they cannot be compared."""
        found: dict[int, Content] = {}
        forms = set()
        for rank, look in looks.items():
            one = None if look is None else content(look.summary)
            if one is None:
                return None
            found[rank] = one
            forms.add((*one[:2], one[2].partition(":")[0]))
        return found if len(forms) == 1 else None


class RankSteps(RunState):
    """Follows all ranks, up to the last step that all have ended.

    ready: the steps that are complete on all ranks by the last event.

    Args:
        counts_all: whether steps that are unrelated to the other ranks count too. They can only be
        recognized by the forward passes of wrappers.
    """

    def __init__(self, *, counts_all: bool = False) -> None:
        self._counts_all = counts_all
        self._world = 1
        self._keys: dict[tuple[int, str], tuple[int, str]] = {}  # rank and stream -> its process
        self._open: dict[tuple[int, str], RankStep] = defaultdict(RankStep)
        self._run_states: dict[tuple[int, str], Rank] = defaultdict(Rank)
        self._order: dict[int, list[str]] = defaultdict(list)  # training processes of a rank
        # By turn (index of a rank's training process) and step
        self._waiting: dict[tuple[int, int], dict[int, tuple[RankStep, Rank]]] = defaultdict(dict)
        self.ready: Sequence[RunStep] = ()

    @property
    def incomplete(self) -> str | None:
        """Why steps could not be compared; None if all could, or if there is only one rank."""
        if self._world == 1 or not self._waiting:
            return None
        seen = {rank for pages in self._waiting.values() for rank in pages}
        missing = sorted(set(range(self._world)) - seen)
        first = min(step for _, step in self._waiting)
        who = f"rank {', '.join(map(str, missing))}" if missing else "some ranks"
        return f"from step {first} on, {who} left no more steps to compare with"

    def observe(self, event: Event) -> None:
        self.ready = ()
        if isinstance(event, MarkEvent):
            size = event.world_size
            if event.text in (Marks.PROCESS, Marks.PROCESS_GROUP) and size is not None:
                self._world = max(self._world, size)
        elif event.step is None or self._world == 1:
            pass  # a DataLoader worker, or no other rank
        elif isinstance(event, StepEvent):
            self.ready = tuple(self._end(event))
        else:
            self._enter(self._key(event), event)

    def _key(self, event: Event) -> tuple[int, str]:
        """The rank and the process of an event."""
        stream = (event.rank, event.stream)
        key = self._keys.get(stream)
        if key is None:
            key = self._keys[stream] = (event.rank, event.stream.partition("-")[0])
        return key

    def _enter(self, key: tuple[int, str], event: Event) -> None:
        if isinstance(event, StateEvent):
            if event.change not in _SAME:
                self._open[key].states[event.role, event.name] = event
                if event.role == "parameter":
                    begun = self._run_states[key].begun
                    if event.change == "gone":
                        begun.pop(event.name, None)
                    else:
                        begun.setdefault(event.name, event)
        elif isinstance(event, CollectiveEvent):
            self._open[key].collectives.append(event)
        elif isinstance(event, CallEvent):
            self._enter_call(key, event)
        elif isinstance(event, OptimizerEvent):
            rank = self._run_states[key]
            rank.is_local |= is_local_method(event.cls)
            rank.held[event.id] = frozenset(n for group in event.groups for n in group.params)

    def _enter_call(self, key: tuple[int, str], call: CallEvent) -> None:
        if call.api == DDP_INIT:
            wrap = Wrap.of(call)
            if wrap is not None:
                self._run_states[key].wraps[wrap.module] = wrap
        elif call.api == DDP_HOOK:
            self._run_states[key].is_apart = True
            self._run_states[key].is_local |= is_local_method(str(call.args.get("hook")))
        elif call.api == JOIN:  # a rank whose inputs have ended waits for the others
            self._run_states[key].is_apart |= call.args.get("enable") is True
            self._run_states[key].is_local |= call.args.get("enable") is True
        elif (call.family or call.api) in _KEPT:
            if call.api == FSDP_FORWARD:
                self._run_states[key].is_sharded = True
            if call.root or call.api == DDP_FORWARD or call.family != Families.MODULE:
                self._open[key].calls.append(call)

    def _end(self, event: StepEvent) -> Iterator[RunStep]:
        key = self._key(event)
        pid = key[1]
        page = self._open[key]
        if not event.recorded:
            page.is_gap = True
            if not event.complete:
                return  # events were lost; the step goes on
        page.end = event
        del self._open[key]
        rank = self._run_states[key]
        if not self._counts_all and rank.is_aside(page):
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
            yield _close(event, waiting)
        elif len(self._waiting) > _MOST_WAITING:
            del self._waiting[min(self._waiting)]


def _close(end: StepEvent, parts: Mapping[int, tuple[RankStep, Rank]]) -> RunStep:
    ordered = sorted(parts.items())
    for _, (page, rank) in ordered:
        if page.is_gap:
            rank.known.clear()  # changes meanwhile were not recorded
        rank.known.update(page.states)
        for key in [key for key, look in page.states.items() if look.change == "gone"]:
            del rank.known[key]
    ends = [page.end for _, (page, _) in ordered if page.end is not None]
    return RunStep(
        step=min(e.step for e in ends if e.step is not None),
        end=end,
        pages={number: page for number, (page, _) in ordered},
        ranks={number: rank for number, (_, rank) in ordered},
        changed=frozenset(key for _, (page, _) in ordered for key in page.states),
    )


def is_local_method(name: str) -> bool:
    """Whether ranks may differ for some steps under an optimizer or hook of this name."""
    lowered = name.lower()
    return any(word in lowered for word in _LOCAL)
