"""Subscriptions: monitors and followers, and the run states they use, each with its events.

A rule with ``scope = "run"`` has one monitor for the whole run, which is subscribed in the router
of each process. It waits until every rank has ended a step (readings/distributed/ranks.py), so the
order in which the ranks are fed makes no difference. The same holds for a relation with this scope.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from traincheck.check.monitors.invariant_monitor import InvariantMonitor
from traincheck.check.monitors.program_filter import programs_by_invariant
from traincheck.readings.provider import Follower, RunState, RunStates, StateMonitor, uses_of
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Violation
from traincheck.schema.protocols import Monitor, Relation, Rule, is_for_run


@dataclass(slots=True, eq=False, kw_only=True)
class Subscription:
    """A monitor with the checks that it serves, a follower, or a run state with its users.

    Most events give a monitor nothing to judge. Observing and judging are therefore two functions:
    `judge` is called only with a result of `observe` that is not empty. This saves a call for each
    event.

    Attributes:
        events: the events that it is given.
        needs: what a trace must hold, so that it can go on.
        check_ids: the checks that it serves.
        readers: names of the followers that it serves.
        observe: takes an event, and returns what there is to judge.
        judge: turns a result of ``observe`` into violations.
        finish: returns the violations that are certain at the end of the run.
        triggered: returns how often each check was triggered.
        uses: the run states that are fed before it.
        is_run_state: whether it is a run state.
        is_learned: whether it judges invariants.
        follower: the one that is fed by it; None for a monitor and a run state.
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
    readers: tuple[str, ...] = ()
    follower: Follower | None = None

    @property
    def serves(self) -> frozenset[str]:
        """The checks and the followers that it serves."""
        return frozenset((*self.check_ids, *self.readers))


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


def follower_subscription(kind: type[Follower], run_states: RunStates) -> Subscription:
    """Subscribe a new follower; ``run_states`` holds those that it may use."""
    follower = run_states.bind(kind())
    return Subscription(
        events=follower.observes,
        needs=follower.needs,
        check_ids=(),
        observe=follower.observe,
        judge=_as_found,
        finish=tuple,
        triggered=dict,
        uses=follower.uses,
        readers=(kind.__qualname__,),
        follower=follower,
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
            subscription.readers += user.readers
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
    """All but ``failed`` and those that serve no other checks and followers than it does."""
    return [s for s in subscriptions if not s.serves <= failed.serves]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks of a run.

    Attributes:
        rules: built-in checks.
        invariants: by name of their relation.
        relations: by name.
        needs: by id of the check.
        infos: by id of the check.
        unusable: id of an invariant -> why it cannot be checked.
        programs: id of an invariant that is restricted to programs -> these programs.
    """

    rules: tuple[Rule, ...]
    invariants: Mapping[str, tuple[Invariant, ...]]
    relations: Mapping[str, Relation]
    needs: Mapping[str, Needs]
    infos: Mapping[str, CheckInfo]
    unusable: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def needs_of(self, invariants: Iterable[Invariant]) -> tuple[Needs, tuple[str, ...]]:
        """The union of what invariants need, and their ids."""
        needs = Needs()
        for invariant in invariants:
            needs |= self.needs[invariant.id]
        return needs, tuple(invariant.id for invariant in invariants)

    def for_run(self, run_states: RunStates) -> list[Subscription]:
        """A subscription for each relation that sees all ranks. run_states: those of the run."""
        found = []
        for name, invariants in self.invariants.items():
            if is_for_run(self.relations[name]):
                monitor = InvariantMonitor(self.relations[name], invariants, run_states=run_states)
                found.append(invariant_subscription(monitor, *self.needs_of(invariants)))
        return found


def prepare(
    invariants: Iterable[Invariant], rules: Iterable[Rule], relations: Mapping[str, Relation]
) -> Checks:
    """Collect the checks. Invariants that this version cannot check are listed as unusable."""
    needs: dict[str, Needs] = {}
    infos: dict[str, CheckInfo] = {}
    unusable: dict[str, str] = {}
    by_relation: dict[str, list[Invariant]] = defaultdict(list)
    rules = tuple(rules)
    for rule in rules:
        needs[rule.info.check_id], infos[rule.info.check_id] = rule.needs, rule.info
    for invariant in invariants:
        claim = invariant.hypothesis
        relation = relations.get(claim.relation)
        needs[invariant.id] = Needs()
        infos[invariant.id] = CheckInfo(
            check_id=invariant.id,
            kind="invariant",
            code=claim.relation,
            severity="info",
            title=invariant.text,
        )
        if relation is None:
            unusable[invariant.id] = f"this version knows no relation {claim.relation!r}"
            continue
        try:
            relation.decider([claim])  # so that one bad claim does not disable its relation
            learned = invariant.needs  # only the file knows where a call was one of these
            needs[invariant.id] = replace(
                relation.needs(claim), level=learned.level, packages=learned.packages
            )
            infos[invariant.id] = relation.info(claim, invariant.id, invariant.text)
            by_relation[claim.relation].append(invariant)
        except Exception as error:  # parameters that no version of the relation ever wrote
            unusable[invariant.id] = failure_text(error)
    return Checks(
        rules=rules,
        invariants={name: tuple(found) for name, found in sorted(by_relation.items())},
        relations=relations,
        needs=needs,
        infos=infos,
        unusable=unusable,
        programs=programs_by_invariant(i for found in by_relation.values() for i in found),
    )


def failure_text(error: Exception) -> str:
    """Why a check was disabled, when it raised ``error``."""
    return f"the check failed with {type(error).__name__}: {error}"


def follower_failure(reader: str, error: Exception) -> str:
    """A note on a follower that raised ``error``."""
    return f"facts are missing: their reader {reader} failed with {type(error).__name__}: {error}"
