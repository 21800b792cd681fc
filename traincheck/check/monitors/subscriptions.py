"""Subscriptions: monitors, and the run states they use, with the events that each of them gets.

A rule with ``scope = "run"`` has one monitor for the whole run, which is subscribed in the router
of each process. It waits until every rank has ended a step (readings/distributed/ranks.py), so the
order in which the ranks are fed makes no difference. The same holds for a relation with this scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from traincheck.check.monitors.invariant_monitor import InvariantMonitor
from traincheck.readings.provider import RunState, RunStates, StateMonitor, uses_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation
from traincheck.schema.protocols import Monitor, Rule, is_for_run


@dataclass(slots=True, eq=False, kw_only=True)
class Subscription:
    """A monitor with the checks that it serves, or a run state with its users.

    Most events give a monitor nothing to judge. Observing and judging are therefore two functions:
    `judge` is called only with a result of `observe` that is not empty. This saves a call for each
    event.

    Attributes:
        events: the events that it is given.
        needs: what a trace must hold, so that it can go on.
        check_ids: the checks that it serves.
        observe: takes an event, and returns what there is to judge.
        judge: turns a result of ``observe`` into violations.
        finish: returns the violations that are certain at the end of the run.
        triggered: returns how often each check was triggered.
        uses: the run states that are fed before it.
        is_run_state: whether it is a run state.
        is_learned: whether it judges invariants.
    """

    events: Needs
    needs: Needs
    check_ids: tuple[str, ...]
    observe: Callable[[Event], Iterable[Any] | None]
    judge: Callable[[Iterable[Any]], Iterable[Violation]]
    finish: Callable[[], Iterable[Violation]]
    triggered: Callable[[], dict[str, int]]
    uses: Sequence[type[RunState]] = ()
    is_run_state: bool = False
    is_learned: bool = False


def rule_subscription(rule: Rule, run_states: RunStates) -> Subscription:
    """Subscribe a new monitor of a rule; ``run_states`` holds those that it may use."""
    monitor, check_id = rule.monitor(), rule.info.check_id
    uses, events = uses_of(monitor), rule.needs.delivered
    if uses:
        user = cast(StateMonitor, monitor)
        user.bind(run_states)
        events = user.observes
    return Subscription(
        events=events,
        needs=rule.needs,
        check_ids=(check_id,),
        observe=monitor.observe,
        judge=_as_found,
        finish=monitor.finish,
        triggered=lambda: {check_id: monitor.triggered},
        uses=uses,
    )


def invariant_subscription(
    monitor: InvariantMonitor, needs: Needs, ids: tuple[str, ...]
) -> Subscription:
    """Subscribe the monitor of all invariants of one relation."""
    return Subscription(
        events=needs,
        needs=needs,
        check_ids=ids,
        observe=monitor.decider.observe,
        judge=monitor.judge,
        finish=monitor.finish,
        triggered=monitor.triggered_by_check,
        uses=monitor.uses,
        is_learned=True,
    )


def plain_subscription(monitor: Monitor, events: Needs) -> Subscription:
    """Subscribe a monitor that serves no check."""
    return Subscription(
        events=events,
        needs=Needs(),
        check_ids=(),
        observe=monitor.observe,
        judge=_as_found,
        finish=tuple,
        triggered=dict,
    )


def state_subscriptions(users: Sequence[Subscription], run_states: RunStates) -> list[Subscription]:
    """Subscribe each run state that any of ``users`` uses. They are fed before their users."""
    found: dict[type[RunState], Subscription] = {}
    for user in users:
        for kind in user.uses:
            if kind not in found:
                run_state = run_states.of(kind)
                found[kind] = Subscription(
                    events=Needs(),
                    needs=Needs(),
                    check_ids=(),
                    observe=run_state.observe,
                    judge=_as_found,
                    finish=tuple,
                    triggered=dict,
                    is_run_state=True,
                )
            subscription = found[kind]
            more = user.needs.delivered | user.events if kind.reads is None else kind.reads
            subscription.events = subscription.events | more
            subscription.check_ids += user.check_ids
    return list(found.values())


def _as_found(violations: Iterable[Any]) -> Iterable[Violation]:
    """The violations of a rule, which need no further judgement."""
    return violations


class RunSubscriptions:
    """The monitors of one run that see all ranks.

    Args:
        rules: all rules; those with ``scope = "run"`` are subscribed.
        relations: subscriptions of the relations that see all ranks.
        run_states: those that these relations use.

    Attributes:
        subscriptions: run states first, then their users.
        failed: id of a check -> why it was disabled.
    """

    def __init__(
        self, rules: Sequence[Rule], relations: Sequence[Subscription], run_states: RunStates
    ) -> None:
        self.failed: dict[str, str] = {}
        own = [rule_subscription(rule, run_states) for rule in rules if is_for_run(rule)]
        users = [*own, *relations]
        self.subscriptions = [*state_subscriptions(users, run_states), *users]
        self._run_states = run_states

    def usable(self, is_observable: Callable[[str], bool]) -> list[Subscription]:
        """The subscriptions for one process whose checks are observable there."""
        usable = [s for s in self.subscriptions if any(is_observable(c) for c in s.check_ids)]
        return [] if all(subscription.is_run_state for subscription in usable) else usable

    def fail(self, failed: Subscription, reason: str) -> bool:
        """Disable a monitor and those that depend on it. False if it is not among these."""
        if failed not in self.subscriptions:
            return False
        self.subscriptions = without_dependents(self.subscriptions, failed)
        self.failed.update(dict.fromkeys(failed.check_ids, reason))
        return True

    def triggered(self) -> dict[str, int]:
        """How often each check was triggered."""
        counts: dict[str, int] = {}
        for subscription in self.subscriptions:
            counts.update(subscription.triggered())
        return counts

    @property
    def incomplete(self) -> list[str]:
        """A reason for each run state that could not be followed through the whole run."""
        return [why for run_state in self._run_states if (why := run_state.incomplete) is not None]


def without_dependents(
    subscriptions: Iterable[Subscription], failed: Subscription
) -> list[Subscription]:
    """All but ``failed`` and the monitors that serve no other checks than it does."""
    return [s for s in subscriptions if not set(s.check_ids) <= set(failed.check_ids)]
