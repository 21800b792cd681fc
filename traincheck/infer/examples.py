"""Second pass over a run: count the examples of each hypothesis by context.

Only counts are kept, so memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.check.verdicts import TraceView, instrument_named
from traincheck.infer.propose import by_scope
from traincheck.infer.replay_views import ClaimGroups, Features, ReplayViews, features_of, with_gaps
from traincheck.readings.programs import Sketch, source_of
from traincheck.readings.provider import Router, RunStates
from traincheck.readings.steps import is_judged
from traincheck.schema.claims import PROGRAM, Context, Hypothesis, Needs
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.marks import Marks
from traincheck.schema.protocols import Decider, EventSource, Relation


@dataclass(slots=True)
class ExampleCounts:
    """The number of examples of one hypothesis.

    Attributes:
        counts: context -> number of positive and of negative examples.
        steps: number of steps with a positive example.
        runs: number of runs with any example.
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

    def add(self, other: ExampleCounts) -> None:
        """Add the counts of another run."""
        for features, (positive, negative) in other.counts.items():
            mine = self.counts.get(features, (0, 0))
            self.counts[features] = (mine[0] + positive, mine[1] + negative)
        self.steps += other.steps
        self.runs += other.runs


class _ExampleCounter:
    """Counts the examples of one decider. Contexts are told apart by identity, which is faster."""

    def __init__(self, decider: Decider, size: int) -> None:
        self.observe, self.finish = decider.observe, decider.finish
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

    def examples(self) -> Iterable[tuple[int, Features, int, int]]:
        features = {key: features_of(context) for key, context in self._contexts.items()}
        for (index, context), (positive, negative) in self._counts.items():
            yield index, features[context], positive, negative


@dataclass(slots=True)
class ClaimExamples:
    """The examples of one hypothesis in a run.

    Attributes:
        examples: in the full trace.
        counterexamples: view -> contexts of the negative examples in that view.
        unobservable: why it cannot be decided; empty if it can.
    """

    examples: ExampleCounts = field(default_factory=ExampleCounts)
    counterexamples: dict[str, set[Features]] = field(default_factory=dict)
    unobservable: str = ""


def count_examples(
    source: EventSource, relations: Mapping[str, Relation], claims: Mapping[str, Hypothesis]
) -> dict[str, ClaimExamples]:
    """The examples of each claim in a run, by key, from one pass over it."""
    own, shared = by_scope(relations)
    groups, for_all = ClaimGroups.of(own, claims), ClaimGroups.of(shared, claims)
    whole_run = _Process(for_all, is_whole_run=True)
    processes: dict[tuple[int, str], _Process] = {}
    stream, rank = "", -1
    observers: list[_Process] = []
    for event in with_gaps(source.events()):
        if event.stream != stream or event.rank != rank:
            stream, rank = event.stream, event.rank
            key = (rank, stream.partition("-")[0])
            if key not in processes:
                processes[key] = _Process(groups)
            observers = [processes[key], whole_run] if for_all.whole else [processes[key]]
        for process in observers:
            process.observe(event)
    found: dict[str, ClaimExamples] = {}
    for process in (*(process for _, process in sorted(processes.items())), whole_run):
        process.finish()
        process.add_to(found)
    for decided in found.values():
        decided.examples.runs = 1 if decided.examples.counts else 0
    return found


class _Process:
    """The deciders of one process, or of the whole run. They get the events that a check gets.

    is_whole_run: of the whole run, which may have several programs.
    """

    def __init__(self, groups: ClaimGroups, *, is_whole_run: bool = False) -> None:
        self._is_whole_run = is_whole_run
        self._groups = groups.whole
        run_states = RunStates()
        self._counters = [
            _ExampleCounter(run_states.bind(group.relation.decider(group.claims)), len(group.keys))
            for group in groups.whole
        ]
        # What feeds a run state gives no examples to count
        receivers: list[tuple[Needs, tuple[Callable[[Event], Any], _ExampleCounter | None]]] = [
            (reads, (observe, None)) for reads, observe in run_states.receivers()
        ]
        receivers += [
            (group.needs, (counter.observe, counter))
            for group, counter in zip(groups.whole, self._counters)
        ]
        self._route = Router(receivers).route
        self._views = ReplayViews(groups.narrow)
        self._view = TraceView()
        self._sketch = Sketch()
        self._steps = 0

    def observe(self, event: Event) -> None:
        for observe, counter in self._route(event):
            examples = observe(event)
            if examples and counter is not None:
                counter.count(examples, event.step)
        self._views.observe(event)
        if event.kind == "state":  # by kind, most frequent first: nine in ten change state
            if event.change == "new":
                self._sketch.observe(event)
        elif isinstance(event, StepEvent):
            self._steps += is_judged(event)
            self._sketch.observe(event)
        elif isinstance(event, MarkEvent):
            # Note what the process does not record
            if event.text == Marks.PROCESS:
                self._view = TraceView.from_mark(event)
                self._sketch.source = self._sketch.source or source_of(event)
            elif event.text == Marks.INSTRUMENT_DISABLED:
                name = instrument_named(str(event.data.get("instrument")))
                if name is not None:
                    self._view.off[name] = str(event.data.get("reason", "it failed"))

    def finish(self) -> None:
        for counter in self._counters:
            counter.count(counter.finish(), None)
        self._views.finish()

    def add_to(self, found: dict[str, ClaimExamples]) -> None:
        """Add the counts to ``found``. Ranks run the same steps, so steps are not summed."""
        for group, counter in zip(self._groups, self._counters):
            for index, context, positive, negative in counter.examples():
                features = self._with_program(context)
                examples = found.setdefault(group.keys[index], ClaimExamples()).examples
                mine = examples.counts.get(features, (0, 0))
                examples.counts[features] = (mine[0] + positive, mine[1] + negative)
                examples.steps = max(examples.steps, counter.steps[index])
        for key, name, context in self._views.counterexamples():
            by_view = found.setdefault(key, ClaimExamples()).counterexamples
            by_view.setdefault(name, set()).add(self._with_program(context))
        for group in self._groups if self._steps else ():
            for key, claim in zip(group.keys, group.claims):
                reason = self._view.missing_for(group.relation.needs(claim))
                if reason is not None:
                    found.setdefault(key, ClaimExamples()).unobservable = reason

    def _with_program(self, context: Features) -> Features:
        """A context with the program as one more feature."""
        program = None if self._is_whole_run else self._view.program
        if program is None:
            return context
        return tuple(sorted((*context, (PROGRAM, self._sketch.of(program)))))
