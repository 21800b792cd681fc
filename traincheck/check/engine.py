"""Feed events to monitors and conclude.

Live runs, recorded runs and replays by inference all pass through this engine. Fed while the run
goes on, it announces each finding once, at the end of a step.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from traincheck.check.context.violation_context import ViolationContext
from traincheck.check.finding_builder import BestEffort, FindingBuilder, Suppress
from traincheck.check.monitors.program_filter import NEEDS, renamed_note, skipped_note
from traincheck.check.monitors.subscriptions import (
    RunSubscriptions,
    Subscription,
    failure_text,
    follower_failure,
    prepare,
)
from traincheck.check.process import Process
from traincheck.check.run_overview import RunOverview, SavedCheckpoints
from traincheck.check.verdicts import TraceView, instrument_named, reasons, verdicts_of
from traincheck.handlers import give_back
from traincheck.readings.provider import Follower, RunStates
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import CheckpointEvent, Event, MarkEvent, OptimizerEvent, StepEvent
from traincheck.schema.facts import Fact, over_ranks
from traincheck.schema.findings import CheckInfo, Finding, Report, Violation
from traincheck.schema.marks import LIFECYCLE_CHANGES, Marks
from traincheck.schema.protocols import EventSource, Relation, Rule
from traincheck.schema.words import joined

_logger = logging.getLogger(__name__)
_MAX_STEPS = 5  # named in a note
_COMPARISON = "the comparison with the reference"


class Engine:
    """Checks one run, event by event.

    Args:
        invariants: accepted hypotheses to check.
        rules: built-in checks; the default is none, pass ``traincheck.rules.all_rules()`` for all.
        relations: by name, those the invariants refer to.
        suppress: returns why a violation is not to be reported; None to report it.
        followers: classes of readers that follow each process but workers of loaders. They judge
            nothing, and share the run states of the checks.

    Attributes:
        suppress: as given.
        needs: the events that any check needs. Those of followers are not among them.
    """

    def __init__(
        self,
        invariants: Iterable[Invariant] = (),
        rules: Iterable[Rule] = (),
        relations: Mapping[str, Relation] | None = None,
        suppress: Suppress | None = None,
        followers: Sequence[type[Follower]] = (),
    ) -> None:
        self._followers = followers
        self._checks = prepare(invariants, rules, relations or {})
        run_states = RunStates()
        self._run = RunSubscriptions(
            self._checks.rules, self._checks.for_run(run_states), run_states
        )
        learned = (i for found in self._checks.invariants.values() for i in found)
        self._context = ViolationContext(learned)
        self.suppress = suppress
        self._best_effort = BestEffort()
        self._builder = FindingBuilder(
            self._checks.infos, suppress, self._context, self._best_effort
        )
        self._processes: dict[tuple[int, str], Process] = {}
        self._violated: dict[str, int] = defaultdict(int)
        self._notes: list[str] = []
        self._gaps: dict[int, dict[int | None, None]] = defaultdict(dict)  # rank -> steps, in order
        self._events = 0
        self._stream: str | None = None
        self._rank: int | None = None
        self._process: Process | None = None
        self._saves = SavedCheckpoints()
        self.needs = Needs(kinds=frozenset({"mark", "step", "checkpoint"}))
        for check_id, needs in self._checks.needs.items():
            if check_id not in self._checks.unusable:
                self.needs |= needs
        if self._checks.programs:
            self.needs |= NEEDS

    @property
    def infos(self) -> Mapping[str, CheckInfo]:
        """Title, severity and texts of each check, by its id."""
        return self._checks.infos

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations that ``event`` proves, the first of each check about each subject only."""
        self._events += 1
        # Events come in long stretches from one stream: 90 ns less than a dictionary look-up each.
        process = self._process
        if process is None or event.stream != self._stream or event.rank != self._rank:
            process = self._process = self._enter(event)
        router = process.router
        # Router.route inlined: it saves a call for each event, a fifth of the cost of one without
        # subscribers. By kind, most frequent first.
        found: tuple[Subscription, ...] | None
        if event.kind == "state":
            table = router.lifecycle if event.change in LIFECYCLE_CHANGES else router.changes
            found = table.get(event.role, ())
        elif event.kind == "call":
            if process.record_call is not None:
                process.record_call(event)
            key = (event.api, event.family)
            found = router.calls.get(key)
            if found is None:
                found = router.resolve(key)
        else:
            late = self._control(process, event)
            found = process.router.route(event)
            if late:
                return [*late, *self._feed(process, found, event)]
        return self._feed(process, found, event) if found else ()

    def end(self, mark: MarkEvent) -> None:
        """Give the checks of the whole run the mark of how it ended, before `finish`."""
        for subscription in self._run.subscriptions:
            if "mark" in subscription.events.kinds:
                self._take(subscription.judge(subscription.observe(mark) or ()))

    def finish(self) -> Report:
        """Conclude when the run has ended. No further event may follow."""
        for key in sorted(self._processes):
            process = self._processes[key]
            for subscription in list(process.subscriptions):
                try:
                    self._take(subscription.finish(), process)
                except Exception as error:  # see _feed
                    give_back(error)
                    self._fail(process, subscription, error)
        for subscription in list(self._run.subscriptions):
            try:
                self._take(subscription.finish())
            except Exception as error:  # see _feed
                give_back(error)
                self._run.fail(subscription, failure_text(error))
                self._note_failure(subscription, error)
        self._notes += self._run.incomplete
        self._note_skipped_invariants()
        facts = self.facts()  # a reader that fails here is noted
        return replace(self.so_far(), facts=facts)

    def facts(self) -> list[Fact]:
        """The facts of all processes so far. A fact that all ranks show alike is one."""
        found: list[tuple[int, Fact]] = []
        for (rank, _), process in self._processes.items():
            for subscription in process.subscriptions:  # a new list takes its place when one fails
                if subscription.follower is not None:
                    try:
                        found += [(rank, fact) for fact in subscription.follower.facts()]
                    except Exception as error:  # see _feed
                        give_back(error)
                        self._fail(process, subscription, error)
        return over_ranks(found)

    def so_far(self) -> Report:
        """The report of the events so far; more may follow."""
        unobservable, triggered = self._totals()
        verdicts = verdicts_of(sorted(self._checks.infos), self._violated, triggered, unobservable)
        counts = [process.steps for process in self._processes.values()]
        findings = self._builder.findings(max(counts, default=0))
        by_rank: Counter[int] = Counter()  # programs that ran one after the other
        recorded: Counter[int] = Counter()
        for (rank, _), process in self._processes.items():
            by_rank[rank] += process.steps
            recorded[rank] += process.recorded_steps
        gaps = [_lost(rank, found) for rank, found in sorted(self._gaps.items())]
        notes = [*gaps, *sorted(set(self._notes)), *self._best_effort.notes]
        return Report(
            events=self._events,
            steps=max(by_rank.values(), default=0),
            checked_steps=max(recorded.values(), default=0),
            ranks=len({rank for rank, _ in self._processes}),
            verdicts=verdicts,
            findings=[finding for finding in findings if finding.suppressed is None],
            notes=(*notes, *reasons(unobservable)),
            infos=self._checks.infos,
            unobservable=unobservable,
            suppressed=[finding for finding in findings if finding.suppressed is not None],
            saves=self._saves.all(),
        )

    def _note_skipped_invariants(self) -> None:
        """Explain why invariants did not apply, e.g. after a script was renamed."""
        training = [process for process in self._processes.values() if process.is_training]
        if training and self._checks.programs:
            applied = {id_ for process in training for id_ in process.applicable()}
            here = {process.program for process in training if process.program}
            total = sum(map(len, self._checks.invariants.values()))
            note = skipped_note(self._checks.programs, applied, here, total)
            self._notes += [note] if note else []
            former = {file for p in training for file in p.program_filter.former_files}
            self._notes += [renamed_note(former, here)] if former else []

    def _enter(self, event: Event) -> Process:
        self._stream, self._rank = event.stream, event.rank
        key = (event.rank, event.stream.partition("-")[0])
        process = self._processes.get(key)
        if process is None:
            view, followers = TraceView(), self._followers
            if isinstance(event, MarkEvent) and event.text == Marks.PROCESS:
                view = TraceView.from_mark(event)
                followers = () if event.data.get("worker") else followers
            calls = self._context.recent_calls(event.rank, view)
            process = Process(self._checks, view, self._run, calls, followers)
            self._processes[key] = process
            self._notes += process.notes
        return process

    def _control(self, process: Process, event: Event) -> Sequence[Violation]:
        """Violations of earlier events that turn out to concern this program."""
        late: Sequence[Violation] = ()
        if isinstance(event, StepEvent):
            late = self._take(process.end_step(event), process)
            if process.recent_calls is not None and event.complete and event.step is not None:
                ended = partial(self._context.end_step, process.recent_calls, event.step)
                self._best_effort(_COMPARISON, ended, _nothing)
        elif isinstance(event, OptimizerEvent):
            if process.recent_calls is not None:
                process.recent_calls.optimizers.append(event)
        elif isinstance(event, CheckpointEvent):
            self._saves.add(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.INSTRUMENT_DISABLED:
            name = instrument_named(str(event.data.get("instrument")))
            if name is None:
                self._gap(process, event)
            else:
                process.instrument_failed(name, str(event.data.get("reason", "it failed")))
        elif isinstance(event, MarkEvent) and event.text == Marks.DROPPED:
            self._gap(process, event)
        elif isinstance(event, MarkEvent) and event.text == Marks.FOLDED:
            # Rules ignore absence in an evaluation; invariants may have been learned from it.
            learned = [s for s in process.router.route(event.gap) if s.is_learned]
            self._feed(process, learned, event.gap)
        return late

    def _gap(self, process: Process, mark: MarkEvent) -> None:
        """Events were lost: absence proves nothing, as in steps that were not recorded."""
        gap = mark.gap
        self._feed(process, process.router.route(gap), gap)
        self._gaps[mark.rank][mark.step] = None

    def _feed(
        self, process: Process, subscriptions: Iterable[Subscription], event: Event
    ) -> Sequence[Violation]:
        new: Sequence[Violation] = ()
        for subscription in subscriptions:
            try:
                found = subscription.observe(event)
                proofs = found and subscription.judge(found)
                if proofs:
                    new = [*new, *self._take(proofs, process)]
            except Exception as error:  # a failing check must not hide what the others find
                give_back(error)
                self._fail(process, subscription, error)
        return new

    def _take(
        self, violations: Iterable[Violation], process: Process | None = None
    ) -> list[Violation]:
        """Count violations, and return the first of each check about each subject."""
        new = []
        if process is not None:
            violations = process.program_filter.filter(violations)
        for violation in violations:
            if violation.withdrawn:
                self._violated[violation.check_id] -= self._builder.withdraw(violation)
                if self._violated[violation.check_id] <= 0:  # the check holds
                    del self._violated[violation.check_id]
                new.append(violation)
                continue
            self._violated[violation.check_id] += 1
            if self._builder.add(violation):
                new.append(violation)
                calls = None if process is None else process.recent_calls
                seen = partial(self._context.on_violation, violation, calls)
                self._best_effort(_COMPARISON, seen, _nothing)
        return new

    def _fail(self, process: Process, failed: Subscription, error: Exception) -> None:
        _logger.debug("a monitor failed", exc_info=error)
        if self._run.fail(failed, failure_text(error)):
            for other in self._processes.values():
                other.disable_shared(failed, failure_text(error))
        else:
            process.disable(failed, failure_text(error))
        self._note_failure(failed, error)

    def _note_failure(self, failed: Subscription, error: Exception) -> None:
        if failed.check_ids:
            names = joined(failed.check_ids, 1)
            self._notes.append(f"{names} was switched off: {failure_text(error)}")
        self._notes += [follower_failure(reader, error) for reader in failed.readers]

    def _totals(self) -> tuple[dict[str, str], dict[str, int]]:
        processes = [self._processes[key] for key in sorted(self._processes)]
        # Only processes that train show what can be observed, unless there is none.
        training = [p for p in processes if p.is_training] or processes
        unobservable = dict(self._checks.unusable)
        for process in training:
            unobservable.update(process.unobservable)
        unobservable.update(self._run.failed)
        triggered: dict[str, int] = defaultdict(int, self._run.triggered())
        for process in processes:
            for check_id, count in process.triggered().items():
                triggered[check_id] += count
        return unobservable, triggered


def run_checks(
    source: EventSource,
    invariants: Iterable[Invariant] = (),
    rules: Iterable[Rule] = (),
    relations: Mapping[str, Relation] | None = None,
    on_violation: Callable[[Violation, CheckInfo], None] | None = None,
) -> Report:
    """Check a run, finished or live.

    Args:
        source: the run; a live one is followed until it ends.
        invariants: accepted hypotheses to check.
        rules: built-in checks.
        relations: by name, those the invariants refer to.
        on_violation: called with the first violation of each check about each subject.
    """
    engine = Engine(invariants, rules, relations)
    watch(engine, source.events(), on_violation)
    return engine.finish()


def watch(
    engine: Engine,
    events: Iterable[Event],
    on_violation: Callable[[Violation, CheckInfo], None] | None = None,
) -> None:
    """Feed ``events`` to ``engine``, and return when they end; see `run_checks`."""
    observe = engine.observe
    for event in events:
        found = observe(event)
        if found and on_violation is not None:
            for violation in found:
                on_violation(violation, engine.infos[violation.check_id])


def _lost(rank: int, steps: Iterable[int | None]) -> str:
    """A note on the steps in which events are missing."""
    names = [str(step) for step in steps]
    where = f"step{'s' * (len(names) > 1)} {joined(names, _MAX_STEPS)}"
    return f"events were lost at {where} of rank {rank}: what is absent there proves nothing"


def _nothing() -> None:
    """In place of an addition that failed."""


OnFinding = Callable[[Finding], None]
Watch = Callable[[Event, bool], None]


class LiveEngine:
    """Feeds an engine and announces findings at the ends of steps.

    Args:
        engine: made for this run.
        on_finding: called once with each finding, and not again when it grows.
        on_withdrawn: called with a finding that was announced and is withdrawn.
        watch: called with each event, and whether a check was broken by it. May not raise.

    Attributes:
        engine: as given.
        overview: what the run consists of so far.
    """

    def __init__(
        self,
        engine: Engine,
        on_finding: OnFinding,
        on_withdrawn: OnFinding | None = None,
        watch: Sequence[Watch] = (),
    ) -> None:
        self.engine = engine
        self.overview = RunOverview()
        self._on_finding = on_finding
        self._on_withdrawn = on_withdrawn
        self._watch = watch
        self._announced: dict[tuple[str, int | None], Finding] = {}
        self._has_news = False

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in the order of the run."""
        observe, add, watch = self.engine.observe, self.overview.add, self._watch
        for event in events:
            add(event)
            found = observe(event)
            for take in watch:
                take(event, bool(found))
            if found:
                self._has_news = True
                self._withdraw({one.check_id for one in found if one.withdrawn})
            # One bug affects many variables within a step: they are announced together, when it has
            # ended, or when no step will end because ranks are silent.
            if self._has_news and (
                event.kind == "step" or (event.kind == "mark" and event.text == Marks.STALLED)
            ):
                self.announce(self.engine.so_far().findings)

    def announce(self, findings: Sequence[Finding]) -> None:
        """Announce the findings that have not been announced yet."""
        self._has_news = False
        for finding in findings:
            key = (finding.check, finding.first_step)
            if key not in self._announced:
                self._announced[key] = finding
                self._on_finding(finding)

    def _withdraw(self, checks: Set[str]) -> None:
        """Withdraw the provisional findings of these checks."""
        for key, finding in list(self._announced.items()):
            if finding.provisional and finding.check in checks:
                del self._announced[key]
                if self._on_withdrawn is not None:
                    self._on_withdrawn(finding)
