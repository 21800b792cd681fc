"""Backward passes: what is clipped and used of them, and derivatives that are taken on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import SHOWN, Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.provider import RunStates
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment
from traincheck.readings.training_state import TrainingState
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.facts import Fact
from traincheck.schema.places import short
from traincheck.schema.torch_api import GRAD, Families
from traincheck.schema.words import joined

_FEW = 3  # updates
_MOSTLY = 0.5

CLIPPED = Kind(
    "loop.clipping of several passes",
    {
        "none": "nothing is clipped by torch.nn.utils before an update",
        "once": "{of} is called for one backward pass, or the sum of several, before each update",
        "several": "{of} is called {most:time} before an update, with a backward pass between "
        "two calls",
    },
)
LINES = Kind(
    "loop.losses of an update",
    {
        "one line": "each update of {of} uses gradients of backward() in one line",
        "several lines": "updates of {of} use gradients of backward() in {place}, and also those "
        "in {others}",
    },
    look="update",
)
INNER = Kind(
    "loop.derivatives within a loss",
    {
        "none": "torch.autograd.grad() is not called before a backward pass",
        "with a graph": "{of}() is called with create_graph=True before a backward pass",
        "both": "{of}() is called with create_graph=True and without it before backward passes",
        "without a graph": "{of}() is called with create_graph=False before a backward pass, for "
        "which the result is a constant",
    },
    look="step",
)


@dataclass(slots=True)
class _Clip:
    """Calls in one line: for how many backward passes since the last update, and for each."""

    name: str
    seen: int = -1  # backward passes when it was called last
    now: int = 0
    updates: list[int] = field(default_factory=list)


class ClippedPasses(FactReader):
    """Counts the backward passes of an update after which gradients are clipped."""

    kinds: ClassVar = (CLIPPED,)
    needs: ClassVar = Needs(
        calls=frozenset(
            {
                Families.CLIP_NORM,
                Families.CLIP_VALUE,
                Families.OPTIMIZER_STEP,
                Families.BACKWARD,
            }
        ),
        kinds=frozenset({"step"}),
    )
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._clips: dict[str, _Clip] = {}
        self._backwards = self._updates = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            if not event.recorded:  # calls of this step are missing
                for clip in self._clips.values():
                    clip.now = 0
            return
        if not isinstance(event, CallEvent) or event.exception is not None:
            return
        family = event.family or event.api
        if family == Families.BACKWARD:
            self._backwards += 1
        elif family == Families.OPTIMIZER_STEP:
            self._updates += 1
            for clip in self._clips.values():
                if clip.now:
                    clip.updates.append(clip.now)
                clip.now = 0
        else:
            name = event.api.rpartition(".")[2]
            clip = self._clips.setdefault(event.where or "", _Clip(name))
            clip.now += clip.seen != self._backwards
            clip.seen = self._backwards

    def facts(self) -> Iterator[Fact]:
        if not self._clips and self._updates >= _FEW:
            yield Fact(kind=CLIPPED.name, seen_as="none")
        for where, clip in self._clips.items():
            if len(clip.updates) < _FEW:
                continue
            [(most, _)] = Counter(clip.updates).most_common(1)
            yield Fact(
                kind=CLIPPED.name,
                of=clip.name,
                seen_as="once" if most == 1 else "several",
                values={"most": most},
                where=where,
            )


@dataclass(slots=True)
class _Updated:
    """The updates of one optimizer, and the lines whose gradients they used together."""

    updates: int = 0
    several: int = 0
    lines: Counter[str] = field(default_factory=Counter)


class LinesOfUpdates(FactReader):
    """Follows gradients from the lines that call backward() to the updates that use them."""

    kinds: ClassVar = (LINES,)
    needs: ClassVar = DISCOVERY | GRADIENTS
    observes: ClassVar = Needs(kinds=frozenset({"step"}))
    uses: ClassVar = (TrainingState,)

    def __init__(self) -> None:
        self._known: dict[str, _Updated] = {}
        self._lines: defaultdict[int, set[str]] = defaultdict(set)  # by parameter, since its update

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(TrainingState)

    def observe(self, event: Event) -> None:
        ended = self._state.ended
        if not isinstance(event, StepEvent) or ended is None:
            return
        if not ended.is_complete or ended.has_own:
            self._lines.clear()
            return
        for moment in ended.moments:
            for identity in moment.cleared:
                self._lines.pop(identity, None)
            if moment.family == Families.BACKWARD and moment.call.where:
                for identity in moment.reached:
                    self._lines[identity].add(moment.call.where)
            elif moment.family == Families.OPTIMIZER_STEP and moment.call.exception is None:
                self._update(moment)

    def _update(self, moment: Moment) -> None:
        updated = self._known.setdefault(moment.call.owner or "", _Updated())
        found = [self._lines.pop(one) for one in moment.applied if one in self._lines]
        if not found:
            return
        updated.updates += 1
        if any(len(lines) > 1 for lines in found):
            updated.several += 1
            updated.lines.update(set().union(*(lines for lines in found if len(lines) > 1)))

    def facts(self) -> Iterator[Fact]:
        for owner, updated in self._known.items():
            holder = self._state.holders.get(owner)
            if holder is None or updated.updates < _FEW:
                continue
            roots = {name.partition(".")[0] for name in holder.names.values()}
            is_several = updated.several > _MOSTLY * updated.updates
            place, *others = sorted(short(line) for line in updated.lines) or [""]
            yield Fact(
                kind=LINES.name,
                of=joined(sorted(roots), SHOWN),
                seen_as="several lines" if is_several else "one line",
                values={"place": place, "others": joined(others, SHOWN)},
                where=holder.made.where or "",
                count=updated.several if is_several else updated.updates - updated.several,
                looks=updated.updates,
            )


@dataclass(slots=True)
class _Line:
    """Calls in one line that come before a backward pass of their step."""

    name: str
    steps: int = 0
    seen: set[bool] = field(default_factory=set)  # whether a graph is made


class InnerDerivatives(FactReader):
    """Follows calls of ``torch.autograd.grad`` on the way to a backward pass."""

    kinds: ClassVar = (INNER,)
    needs: ClassVar = Needs(calls=frozenset({GRAD, Families.BACKWARD}), kinds=frozenset({"step"}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._now: dict[str, set[bool]] = {}
        self._passed: set[str] = set()  # lines with a backward pass behind them in this step
        self._steps = 0
        self._has_backward = False

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._steps += self._has_backward
            for where in self._passed:
                self._lines[where].steps += 1
            self._now, self._passed, self._has_backward = {}, set(), False
        elif isinstance(event, CallEvent) and event.exception is None:
            if event.api == GRAD:
                self._now.setdefault(event.where or "", set()).add(_makes_graph(event))
            else:
                self._has_backward = True
                for where, seen in self._now.items():
                    self._lines.setdefault(where, _Line(GRAD)).seen |= seen
                    self._passed.add(where)
                self._now = {}

    def facts(self) -> Iterator[Fact]:
        found = {where: line for where, line in self._lines.items() if line.steps >= _FEW}
        if not found and self._steps >= _FEW:
            yield Fact(kind=INNER.name, seen_as="none", count=self._steps, looks=self._steps)
        for where, line in found.items():
            with_graph, without = True in line.seen, False in line.seen
            yield Fact(
                kind=INNER.name,
                of=line.name,
                seen_as="both"
                if with_graph and without
                else "with a graph"
                if with_graph
                else "without a graph",
                where=where,
                count=line.steps,
                looks=self._steps,
            )


def _makes_graph(event: CallEvent) -> bool:
    return event.args.get("create_graph") is True


READERS = (ClippedPasses, LinesOfUpdates, InnerDerivatives)
