"""Where monitors sit: one seat for each, and the seats of those that see all ranks.

Feeds nothing. A rule with ``scope = "run"`` has one monitor for the whole run, with a seat in each
process' router. It waits by itself until every rank has ended a step (rules/_ranks.py), so the
order in which ranks are fed makes no difference. So has a relation, for all its invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.check.gate import Gate
from traincheck.rules._ledger import Bookkeeper
from traincheck.rules._ranks import RankKeeper, RankMonitor
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation
from traincheck.schema.protocols import Monitor, Rule, is_for_run

STEP_ENDS = Needs(kinds=frozenset({"step"}))


@dataclass(slots=True, eq=False)
class Seat:
    """One running monitor and the checks it stands for. gets: the events it is to be given.

    ask, judge: what a monitor does when it observes, in two parts, as nearly all events tell it
    nothing: only what the first returns, if it is anything, is given to the second. That is a call
    less for each event.
    """

    monitor: Monitor
    gets: Needs
    needs: Needs
    check_ids: tuple[str, ...]
    ask: Callable[[Event], Iterable[Any]] = field(init=False)
    judge: Callable[[Iterable[Any]], Iterable[Violation]] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.monitor, Gate):
            self.ask, self.judge = self.monitor.decider.observe, self.monitor.judge
        else:
            self.ask, self.judge = self.monitor.observe, _as_judged

    def triggered(self) -> dict[str, int]:
        if isinstance(self.monitor, Gate):
            return self.monitor.triggered_by_check()
        if isinstance(self.monitor, (Bookkeeper, RankKeeper)):
            return {}
        return {self.check_ids[0]: self.monitor.triggered}


def _as_judged(violations: Iterable[Any]) -> Iterable[Violation]:
    """What a rule has found."""
    return violations


class RunSeats:
    """The monitors of one run that see all ranks.

    Args:
        rules: those among which they are looked for.
        relations: seats of those that speak of all ranks.
    """

    def __init__(self, rules: Sequence[Rule], relations: Sequence[Seat] = ()) -> None:
        self.failed: dict[str, str] = {}  # check -> why it was taken out
        self.seats = [
            Seat(rule.monitor(), rule.needs, rule.needs, (rule.info.check_id,))
            for rule in rules
            if is_for_run(rule)
        ]
        self._keeper: RankKeeper | None = None
        self._share()
        self.seats += relations

    def _share(self) -> None:
        """Let one keeper see the events for all monitors that judge by books of all ranks."""
        sharing = [seat for seat in self.seats if isinstance(seat.monitor, RankMonitor)]
        if not sharing:
            return
        gets = Needs()
        for seat in sharing:
            gets, seat.gets = gets | seat.needs, STEP_ENDS
        self._keeper = RankKeeper(s.monitor for s in sharing if isinstance(s.monitor, RankMonitor))
        ids = tuple(check_id for seat in sharing for check_id in seat.check_ids)
        # First, so that the books are made when the rules look into them.
        self.seats.insert(0, Seat(self._keeper, gets, Needs(), ids))

    def usable(self, is_observable: Callable[[str], bool]) -> list[Seat]:
        """Seats for one process, as far as its view serves them."""
        usable = [s for s in self.seats if any(is_observable(c) for c in s.check_ids)]
        return [] if all(seat.monitor is self._keeper for seat in usable) else usable

    def fail(self, seat: Seat, reason: str) -> bool:
        """Take out a monitor, and those that depend on it, if it is one of ours."""
        if seat not in self.seats:
            return False
        self.seats = [s for s in self.seats if not set(s.check_ids) <= set(seat.check_ids)]
        self.failed.update(dict.fromkeys(seat.check_ids, reason))
        return True

    def triggered(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for seat in self.seats:
            counts.update(seat.triggered())
        return counts

    @property
    def incomplete(self) -> str | None:
        """Why steps could not be compared among ranks, if so."""
        return None if self._keeper is None else self._keeper.books.incomplete
