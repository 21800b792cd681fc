"""The facts of a run: its processes are followed one by one, and told together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traincheck.check.verdicts import TraceView
from traincheck.facts.reader import FactReader
from traincheck.facts.table import READERS
from traincheck.handlers import give_back
from traincheck.readings.provider import Router, RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.facts import Fact
from traincheck.schema.marks import Marks


@dataclass(frozen=True, slots=True)
class _Process:
    """The readers of one process."""

    readers: Sequence[FactReader]
    router: Router[Callable[[Event], None]]


class FactBook:
    """Follows the events of a run, and tells its facts.

    Args:
        readers: the classes of the readers.

    Attributes:
        fault: an exception that ended the following of a process; None if there was none.
    """

    def __init__(self, readers: Sequence[type[FactReader]] = READERS) -> None:
        self._readers = readers
        self._processes: dict[tuple[int, str], _Process | None] = {}
        self.fault: Exception | None = None

    def observe(self, event: Event) -> None:
        """Enter the next event, in the order of the trace."""
        key = event.rank, event.stream.partition("-")[0]
        if key in self._processes:
            process = self._processes[key]
        else:
            process = self._processes[key] = self._begin(event)
        if process is not None:
            for observe in process.router.route(event):
                observe(event)

    def take(self, event: Event, _is_broken: bool) -> None:
        """Enter an event beside a check, which goes on whatever goes wrong here."""
        try:
            self.observe(event)
        except Exception as error:
            give_back(error)
            self.fault = error
            self._processes[event.rank, event.stream.partition("-")[0]] = None

    def _begin(self, event: Event) -> _Process | None:
        """The readers of what the process recorded; None for a worker of a loader."""
        view = TraceView()
        if isinstance(event, MarkEvent) and event.text == Marks.PROCESS:
            if event.data.get("worker"):
                return None
            view = TraceView.from_mark(event)
        run_states = RunStates()
        # That something was not recorded is no fact of the run
        seen = [kind for kind in self._readers if view.missing_for(kind.needs) is None]
        readers = [run_states.bind(kind()) for kind in seen]
        needs: dict[Any, Needs] = defaultdict(Needs)  # run state -> what its users need
        for reader in readers:
            for kind in reader.uses:
                needs[kind] |= reader.needs.delivered
        receivers = [(state.reads or needs[type(state)], state.observe) for state in run_states] + [
            (reader.observes, reader.observe) for reader in readers
        ]
        return _Process(readers, Router(receivers))

    def facts(self) -> list[Fact]:
        """The facts so far. What all ranks show alike is one fact."""
        found: dict[Any, dict[int, Fact]] = defaultdict(dict)
        ranks: set[int] = set()
        for (rank, _), process in self._processes.items():
            for reader in process.readers if process is not None else ():
                for fact in reader.facts():
                    ranks.add(rank)
                    found[fact.key, fact.seen_as].setdefault(rank, fact)
        return [
            replace(next(iter(by_rank.values())), ranks=_where(by_rank, ranks))
            for by_rank in found.values()
        ]


def _where(ranks: Iterable[int], everywhere: set[int]) -> tuple[int, ...]:
    return () if set(ranks) == everywhere else tuple(sorted(ranks))


def facts_of(events: Iterable[Event]) -> list[Fact]:
    """The facts of a recorded run."""
    book = FactBook()
    for event in events:
        book.observe(event)
    return book.facts()
