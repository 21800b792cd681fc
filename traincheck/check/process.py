"""The monitors and followers of one process of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from traincheck.check.context.violation_context import RecentCalls
from traincheck.check.monitors.invariant_monitor import (
    InvariantMonitor,
    renamed_to_program,
    restricted_to_program,
)
from traincheck.check.monitors.program_filter import NEEDS, ProgramFilter
from traincheck.check.monitors.subscriptions import (
    Checks,
    RunSubscriptions,
    Subscription,
    failure_text,
    follower_failure,
    follower_subscription,
    invariant_subscription,
    plain_subscription,
    rule_subscription,
    state_subscriptions,
    without_dependents,
)
from traincheck.check.verdicts import TraceView
from traincheck.handlers import give_back
from traincheck.readings.programs import file_of
from traincheck.readings.provider import Follower, Router, RunStates
from traincheck.schema.claims import Invariant, Schedule
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.protocols import Relation, is_for_run

_Choice = Callable[[tuple[Invariant, ...], str | None], tuple[Invariant, ...]]


class Process:
    """The monitors of one process. Each process has its own monitors.

    Args:
        checks: those of the run.
        view: what the process recorded.
        run: monitors of the whole run.
        calls: see ``recent_calls``.
        followers: classes of readers, which share the run states of the monitors. A reader is left
            out if its events were not recorded: their absence proves nothing.

    Attributes:
        router: gives the subscriptions of an event.
        subscriptions: of this process alone, run states first.
        program_filter: which invariants apply here.
        recent_calls: kept for comparisons; None if no invariant has an excerpt.
        record_call: adds a call to them; None if there are none.
        unobservable: id of a check -> why it cannot be decided here.
        steps: number of steps that ended.
        recorded_steps: number of those that sampling recorded.
        notes: on followers that could not be made.
    """

    def __init__(
        self,
        checks: Checks,
        view: TraceView,
        run: RunSubscriptions,
        calls: RecentCalls | None,
        followers: Sequence[type[Follower]] = (),
    ) -> None:
        self.recent_calls = calls
        self.record_call = None if calls is None else calls.calls.append
        self.unobservable: dict[str, str] = {}
        self.steps = 0
        self.recorded_steps = 0
        self.notes: list[str] = []
        self._checks = checks
        self._view = view
        self.subscriptions: list[Subscription] = []
        self._disabled: list[Subscription] = []
        self.program_filter = ProgramFilter(checks.programs, view.program, view.source)
        self._program = plain_subscription(self.program_filter, NEEDS)
        self._run_states = RunStates()
        for rule in checks.rules:
            check_id = rule.info.check_id
            if not is_for_run(rule) and self._is_observable(check_id):
                self._subscribe(partial(rule_subscription, rule, self._run_states), (check_id,))
        self._subscribe_invariants(restricted_to_program)
        self._provisional: list[Subscription] = []  # until it is known whether it was renamed
        if self.program_filter.is_renamed:
            first = len(self.subscriptions)
            self._subscribe_invariants(renamed_to_program)
            self._provisional = self.subscriptions[first:]
        for kind in followers:
            self._follow(kind)
        self.subscriptions[:0] = state_subscriptions(self.subscriptions, self._run_states)
        self._shared = run.usable(self._is_observable)
        self.router = self._make_router()

    @property
    def is_training(self) -> bool:
        """Whether steps end here. A DataLoader worker does not show what can be observed."""
        return self.steps > 0

    @property
    def program(self) -> str | None:
        """File name of the program."""
        return self._view.program

    def applicable(self) -> list[str]:
        """Ids of the invariants that are restricted to programs, and apply to this one."""
        return [
            id_
            for id_, programs in self._checks.programs.items()
            if (
                self.program_filter.is_renamed
                or any(file_of(one) == self.program for one in programs)
            )
            and self.program_filter.applies(id_)
        ]

    def end_step(self, event: StepEvent) -> Sequence[Violation]:
        """Count a step, unless it stands for lost events.

        Returns:
            Earlier violations of which it is known only now that they concern this program.
        """
        if not (event.complete or event.counters.get("optimizer_step", 0)):
            return ()
        self.steps += 1
        self.recorded_steps += event.recorded
        self.program_filter.end_step()
        if not self._provisional:
            return ()
        if not self.program_filter.former_files:
            # Drop monitors of invariants that do not apply to this program.
            ids = {check_id for one in self._provisional for check_id in one.check_ids}
            self.subscriptions = [s for s in self.subscriptions if s not in self._provisional]
            self.unobservable = {id_: w for id_, w in self.unobservable.items() if id_ not in ids}
            self.router = self._make_router()
        self._provisional = []
        return self.program_filter.release()

    def instrument_failed(self, name: str, reason: str) -> None:
        """Disable what needs the instrument ``name``, which records nothing from here on."""
        self._view.off[name] = reason
        for subscription in list(self.subscriptions):
            why = self._view.missing_for(subscription.needs)
            if why is not None:
                self.disable(subscription, why)
        for subscription in self._shared:
            why = self._view.missing_for(subscription.needs)
            if why is not None:
                self.disable_shared(subscription, why)

    def disable(self, failed: Subscription, reason: str) -> None:
        """Disable a monitor and those that depend on it; violations found so far remain."""
        left = without_dependents(self.subscriptions, failed)
        self._disabled += [one for one in self.subscriptions if one not in left]
        self.subscriptions = left
        self.unobservable.update(dict.fromkeys(failed.check_ids, reason))
        self.router = self._make_router()

    def disable_shared(self, failed: Subscription, reason: str) -> None:
        """Give no more events of this process to a monitor of the whole run."""
        self._shared = without_dependents(self._shared, failed)
        self.unobservable.update(dict.fromkeys(failed.check_ids, reason))
        self.router = self._make_router()

    def triggered(self) -> dict[str, int]:
        """How often each check was triggered that applies to this program."""
        counts: dict[str, int] = {}
        for subscription in [*self.subscriptions, *self._disabled]:
            counts.update(subscription.triggered())
        return {id_: count for id_, count in counts.items() if self.program_filter.applies(id_)}

    def _make_router(self) -> Router[Subscription]:
        subscriptions = [*self.subscriptions, *self._shared]
        if self._checks.programs:
            subscriptions.insert(0, self._program)
        return Router([(one.events, one) for one in subscriptions])

    def _is_observable(self, check_id: str) -> bool:
        reason = self._view.missing_for(self._checks.needs[check_id])
        if reason is not None:
            self.unobservable[check_id] = reason
        return reason is None

    def _subscribe_invariants(self, choose: _Choice) -> None:
        for name, invariants in self._checks.invariants.items():
            if is_for_run(self._checks.relations[name]):
                continue  # RunSubscriptions has its monitor
            usable = choose(invariants, self._view.program)
            usable = tuple(i for i in usable if self._is_observable(i.id))
            for schedule in (None, self._view.schedule):  # the latter for what is sampled
                is_sampled = schedule is not None
                chosen = (
                    i for i in usable if self._view.samples(self._checks.needs[i.id]) is is_sampled
                )
                self._subscribe_relation(self._checks.relations[name], tuple(chosen), schedule)

    def _subscribe_relation(
        self,
        relation: Relation,
        invariants: tuple[Invariant, ...],
        schedule: Schedule | None,
    ) -> None:
        if not invariants:
            return
        needs, ids = self._checks.needs_of(invariants)

        def subscribe() -> Subscription:
            return invariant_subscription(
                InvariantMonitor(relation, invariants, schedule, self._run_states), needs, ids
            )

        self._subscribe(subscribe, ids)

    def _follow(self, kind: type[Follower]) -> None:
        if self._view.missing_for(kind.needs) is None:
            try:
                self.subscriptions.append(follower_subscription(kind, self._run_states))
            except Exception as error:  # a broken reader must not disable the others
                give_back(error)
                self.notes.append(follower_failure(kind.__qualname__, error))

    def _subscribe(self, make: Callable[[], Subscription], ids: tuple[str, ...]) -> None:
        try:
            self.subscriptions.append(make())
        except Exception as error:  # a broken check must not disable the others
            give_back(error)
            self.unobservable.update(dict.fromkeys(ids, failure_text(error)))
