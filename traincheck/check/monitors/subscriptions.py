"""Monitors and the events they get: a seat for each, for the facts they use, and for the whole run.

Feeds nothing. A rule with ``scope = "run"`` has one monitor for the whole run, with a seat in each
process' router. It waits by itself until every rank has ended a step (facts/ranks.py), so the
order in which ranks are fed makes no difference. So has a relation, for all its invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from traincheck.check.monitors.invariant_monitor import Gate
from traincheck.facts.provider import Fact, FactMonitor, Facts, uses_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation
from traincheck.schema.protocols import Monitor, Rule, is_for_run


@dataclass(slots=True, eq=False, kw_only=True)
class Seat:
    """What gets events: a monitor with the checks that it stands for, or a fact with its users.

    gets: the events it is to be given. needs: without which it cannot go on. uses: facts that are
    fed before it. is_fact, is_learned: whether it is a fact, or judges invariants.

    ask, judge: what a monitor does when it observes, in two parts, as nearly all events tell it
    nothing: only what the first returns, if it is anything, is given to the second. That is a call
    less for each event.
    """

    gets: Needs
    needs: Needs
    check_ids: tuple[str, ...]
    ask: Callable[[Event], Iterable[Any] | None]
    judge: Callable[[Iterable[Any]], Iterable[Violation]]
    finish: Callable[[], Iterable[Violation]]
    triggered: Callable[[], dict[str, int]]
    uses: Sequence[type[Fact]] = ()
    is_fact: bool = False
    is_learned: bool = False


def rule_seat(rule: Rule, facts: Facts) -> Seat:
    """A seat for a new monitor of a rule; ``facts`` has those that it may use."""
    monitor, check_id = rule.monitor(), rule.info.check_id
    uses, gets = uses_of(monitor), rule.needs
    if uses:
        user = cast(FactMonitor, monitor)
        user.bind(facts)
        gets = user.observes
    return Seat(
        gets=gets,
        needs=rule.needs,
        check_ids=(check_id,),
        ask=monitor.observe,
        judge=_as_judged,
        finish=monitor.finish,
        triggered=lambda: {check_id: monitor.triggered},
        uses=uses,
    )


def gate_seat(gate: Gate, needs: Needs, ids: tuple[str, ...]) -> Seat:
    """A seat for the invariants of one relation."""
    return Seat(
        gets=needs,
        needs=needs,
        check_ids=ids,
        ask=gate.decider.observe,
        judge=gate.judge,
        finish=gate.finish,
        triggered=gate.triggered_by_check,
        is_learned=True,
    )


def plain_seat(monitor: Monitor, gets: Needs) -> Seat:
    """A seat for what stands for no check."""
    return Seat(
        gets=gets,
        needs=Needs(),
        check_ids=(),
        ask=monitor.observe,
        judge=_as_judged,
        finish=tuple,
        triggered=dict,
    )


def fact_seats(users: Sequence[Seat], facts: Facts) -> list[Seat]:
    """A seat for each fact that any of ``users`` uses. They are to be fed before the users."""
    found: dict[type[Fact], Seat] = {}
    for user in users:
        for kind in user.uses:
            if kind not in found:
                found[kind] = _fact_seat(facts.of(kind))
            seat = found[kind]
            seat.gets = seat.gets | user.needs | user.gets
            seat.check_ids += user.check_ids
    return list(found.values())


def _fact_seat(fact: Fact) -> Seat:
    return Seat(
        gets=Needs(),
        needs=Needs(),
        check_ids=(),
        ask=fact.observe,
        judge=_as_judged,
        finish=tuple,
        triggered=dict,
        is_fact=True,
    )


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
        facts = Facts()
        seats = [rule_seat(rule, facts) for rule in rules if is_for_run(rule)]
        self.seats = [*fact_seats(seats, facts), *seats, *relations]
        self._facts = facts

    def usable(self, is_observable: Callable[[str], bool]) -> list[Seat]:
        """Seats for one process, as far as its view serves them."""
        usable = [s for s in self.seats if any(is_observable(c) for c in s.check_ids)]
        return [] if all(seat.is_fact for seat in usable) else usable

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
    def incomplete(self) -> list[str]:
        """Of which facts some of the run could not be followed, and why."""
        return [why for fact in self._facts if (why := fact.incomplete) is not None]
