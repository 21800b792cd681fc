"""Second pass: count the examples of each hypothesis by context. Keeps counts, not examples.

Equal examples are one row, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from traincheck.check.monitors.router import Router
from traincheck.check.verdicts import TraceView, instrument_named
from traincheck.facts.programs import Sketch
from traincheck.facts.steps import is_judged
from traincheck.infer.propose import by_scope
from traincheck.infer.replay_views import Features, Groups, Views, features_of, with_gaps
from traincheck.schema.apis import Marks
from traincheck.schema.claims import PROGRAM, Context, Hypothesis
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.protocols import Decider, EventSource, Relation


@dataclass(slots=True)
class Rows:
    """The examples of one hypothesis. counts: context -> positive and negative ones.

    steps: in which there was a positive one. runs: that had any example.
    """

    counts: dict[Features, tuple[int, int]] = field(default_factory=dict)
    steps: int = 0
    runs: int = 0

    @property
    def positive(self) -> int:
        return sum(positive for positive, _ in self.counts.values())

    @property
    def negative(self) -> int:
        return sum(negative for _, negative in self.counts.values())

    def add(self, other: Rows) -> None:
        """Take in the rows of another run."""
        for features, (positive, negative) in other.counts.items():
            mine = self.counts.get(features, (0, 0))
            self.counts[features] = (mine[0] + positive, mine[1] + negative)
        self.steps += other.steps
        self.runs += other.runs


class _Tally:
    """Counts what one decider says. A context is looked into once for each object."""

    def __init__(self, decider: Decider, size: int) -> None:
        self.decider = decider
        self.steps = [0] * size
        self._last: list[int | None] = [-1] * size
        self._counts: dict[tuple[int, int], list[int]] = {}
        self._contexts: dict[int, Context] = {}  # kept alive, so that no id is used twice

    def count(self, examples: Iterable[tuple[int, Example]], step: int | None) -> None:
        counts, last = self._counts, self._last
        for index, example in examples:
            context = example.context
            cell = counts.get((index, id(context)))
            if cell is None:
                self._contexts[id(context)] = context
                cell = counts[index, id(context)] = [0, 0]
            if example.holds:
                cell[0] += 1
                if last[index] != step:
                    last[index] = step
                    self.steps[index] += 1
            else:
                cell[1] += 1

    def rows(self) -> Iterable[tuple[int, Features, int, int]]:
        features = {key: features_of(context) for key, context in self._contexts.items()}
        for (index, context), (positive, negative) in self._counts.items():
            yield index, features[context], positive, negative


@dataclass(slots=True)
class Decided:
    """What a run says of one hypothesis.

    objections: view -> contexts in which a negative example is seen in that view.
    unobservable: why it cannot be decided; empty when it can.
    """

    rows: Rows = field(default_factory=Rows)
    objections: dict[str, set[Features]] = field(default_factory=dict)
    unobservable: str = ""


def collect(
    source: EventSource, relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]
) -> dict[str, Decided]:
    """What a run says of each claim, by key, from one pass over it."""
    own, shared = by_scope(relations)
    groups, for_all = Groups.of(own, claims), Groups.of(shared, claims)
    everywhere = _Process(for_all, is_whole=True)
    processes: dict[tuple[int, str], _Process] = {}
    stream, rank = "", -1
    observers: list[_Process] = []
    for event in with_gaps(source.events()):
        if event.stream != stream or event.rank != rank:
            stream, rank = event.stream, event.rank
            key = (rank, stream.partition("-")[0])
            if key not in processes:
                processes[key] = _Process(groups)
            observers = [processes[key], everywhere] if for_all.whole else [processes[key]]
        for process in observers:
            process.observe(event)
    found: dict[str, Decided] = {}
    for process in (*(process for _, process in sorted(processes.items())), everywhere):
        process.finish()
        process.into(found)
    for decided in found.values():
        decided.rows.runs = 1 if decided.rows.counts else 0
    return found


class _Process:
    """The deciders of one process, or of all, each given the events that a check would give it.

    is_whole: of all; these may be of several programs.
    """

    def __init__(self, groups: Groups, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._groups = groups.whole
        self._tallies = [
            _Tally(group.relation.decider(group.claims), len(group.keys)) for group in groups.whole
        ]
        router = Router(list(zip([group.needs for group in groups.whole], self._tallies)))
        self._route = router.route
        self._views = Views(groups.narrow)
        self._sight = TraceView()
        self._sketch = Sketch()
        self._steps = 0

    def observe(self, event: Event) -> None:
        for tally in self._route(event):
            examples = tally.decider.observe(event)
            if examples:
                tally.count(examples, event.step)
        self._views.observe(event)
        if event.kind == "state":  # by kind, most frequent first: nine in ten change state
            if event.change == "new":
                self._sketch.observe(event)
        elif isinstance(event, StepEvent):
            self._steps += is_judged(event)
        elif isinstance(event, MarkEvent):
            self._look(event)

    def finish(self) -> None:
        for tally in self._tallies:
            tally.count(tally.decider.finish(), None)
        self._views.finish()

    def into(self, found: dict[str, Decided]) -> None:
        """Add the counts to those of other processes; ranks see the same steps."""
        for group, tally in zip(self._groups, self._tallies):
            for index, context, positive, negative in tally.rows():
                features = self._placed(context)
                rows = found.setdefault(group.keys[index], Decided()).rows
                mine = rows.counts.get(features, (0, 0))
                rows.counts[features] = (mine[0] + positive, mine[1] + negative)
                rows.steps = max(rows.steps, tally.steps[index])
        for key, name, context in self._views.objections():
            objections = found.setdefault(key, Decided()).objections.setdefault(name, set())
            objections.add(self._placed(context))
        for group in self._groups if self._steps else ():
            for key, claim in zip(group.keys, group.claims):
                reason = self._sight.lacks(group.relation.needs(claim))
                if reason is not None:
                    found.setdefault(key, Decided()).unobservable = reason

    def _placed(self, context: Features) -> Features:
        """A context with the program that it was seen in, as one more feature."""
        program = None if self._is_whole else self._sight.program
        if program is None:
            return context
        return tuple(sorted((*context, (PROGRAM, self._sketch.of(program)))))

    def _look(self, mark: MarkEvent) -> None:
        """Take note of what the process does not record."""
        if mark.text == Marks.PROCESS:
            self._sight = TraceView.of(mark)
        elif mark.text == Marks.INSTRUMENT_DISABLED:
            name = instrument_named(str(mark.data.get("instrument")))
            if name is not None:
                self._sight.off[name] = str(mark.data.get("reason", "it failed"))
