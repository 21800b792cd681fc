"""The input of the table of causes: the first difference, and what is known around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.diff.difference import EnvironmentEntry, Resume
from traincheck.diff.items import Item, Phase
from traincheck.diff.run_facts import Lookup, RankFacts
from traincheck.diff.sources import Change, Program, nearest_first
from traincheck.diff.steps import CallRecord, StepView, Variable

# Functions that make the batches of a data set.
_LOADING = ("__getitem__", "__getitems__", "__iter__", "collate", "collate_fn", "__call__")


@dataclass(slots=True, kw_only=True)
class Side:
    """One run at the step of the first difference.

    Attributes:
        label: how the report calls it.
        view: the step. last: the step before it; None at the first.
        facts: what is kept of its earlier steps.
        values: of its variables when the step ended.
        lookup: finds a value of the run.
        load: reads its source files, as far as the trace keeps copies; once.
    """

    label: str
    view: StepView
    last: StepView | None
    facts: RankFacts
    values: Mapping[Variable, bytes | None]
    lookup: Lookup
    load: Callable[[], Program] = Program

    @property
    def program(self) -> Program:
        """Its source files."""
        return self.load()


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that an explanation may use.

    Attributes:
        item: the first difference.
        items: all differences of its step, the first cause first.
        a, b: the two runs.
        environment: facts of the processes that differ.
        resume: where B continues A.
        is_ranks: whether the two are ranks of one run.
        extra: calls that only one run makes, after which no value of the forward pass differs.
        latent: generators and settings that differ, on which the first difference does not depend.
        then: the difference that comes of ``item``, if this is a generator or a setting.
        compare_sources: finds the lines of the user's code that differ; once.
        compared, unknown: by phase, how many values of the step were compared, or could not be.
    """

    item: Item
    items: Sequence[Item]
    a: Side
    b: Side
    environment: tuple[EnvironmentEntry, ...] = ()
    resume: Resume | None = None
    is_ranks: bool = False
    extra: Sequence[Item] = ()
    latent: Sequence[Item] = ()
    then: Item | None = None
    compare_sources: Callable[[], Sequence[Change]] = tuple
    compared: Counter[Phase] = field(default_factory=Counter)
    unknown: Counter[Phase] = field(default_factory=Counter)

    def of(self, phase: Phase) -> list[Item]:
        """The differences of one phase in this step."""
        return [item for item in self.items if item.phase is phase]

    def named(self, name: str) -> EnvironmentEntry | None:
        """A fact of the processes that differs, by its name."""
        return next((entry for entry in self.environment if entry.name == name), None)

    @property
    def changes(self) -> Sequence[Change]:
        """Lines of the user's code that differ, as they come."""
        return self.compare_sources()

    @property
    def has_sources(self) -> bool:
        """Whether both runs keep copies of their source files."""
        return bool(self.a.program.files and self.b.program.files)

    def nearest(self) -> list[Change]:
        """The lines that differ, those next to the first difference first."""
        item = self.then or self.item
        # The lines of the calls of the step up to the item, the last one first.
        last = item.call.seq if isinstance(item.call, CallRecord) else None
        calls = self.a.view.inits if item.is_opening else self.a.view.calls
        places = [
            call.where
            for call in reversed(calls)
            if call.where and (last is None or call.seq <= last)
        ]
        places = [*([item.where] if item.where else ()), *dict.fromkeys(places)]
        return nearest_first(self.changes, places, self._computing(item))

    def functions_of(self, item: Item) -> Iterator[str]:
        """The source of the functions that compute an item, in both runs."""
        for side in (self.a, self.b):
            for name in self._computing(item):
                for source in side.program.files.values():
                    text = source.text_of(name)
                    if text:
                        yield text

    def _computing(self, item: Item) -> list[str]:
        """Names of functions that compute an item: its module's, and those around it."""
        if item.phase is Phase.BATCH:
            return list(_LOADING)
        found = []
        call = item.call
        if isinstance(call, CallRecord):
            side = self.a if item.a is not None or item.b is None else self.b
            by_span = {one.span: one for one in side.view.calls}
            while call is not None:
                # ``Net.forward`` of ``__main__.Net.forward``.
                found.append(".".join(call.api.split(".")[-2:]))
                call = by_span.get(call.parent) if call.parent is not None else None
        at = [side.program.at(item.where) for side in (self.a, self.b) if item.where]
        for source, line in filter(None, at):
            function = source.function_at(line)
            if function is not None:
                found.append(function.name)
        return found
