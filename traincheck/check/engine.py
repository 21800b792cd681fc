"""Feed events to monitors and conclude.

Live and recorded runs both pass through here; inference replays through it too.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from traincheck.check.best_effort import Decorating
from traincheck.check.context.violation_context import Ring, Witness
from traincheck.check.finding_builder import Accept, FindingBook
from traincheck.check.monitors.invariant_monitor import Gate, within_program
from traincheck.check.monitors.program_filter import SEES, Guard, kept_to_programs, others_note
from traincheck.check.monitors.router import Router
from traincheck.check.monitors.subscriptions import (
    RunSeats,
    Seat,
    fact_seats,
    gate_seat,
    plain_seat,
    rule_seat,
)
from traincheck.check.saved_checkpoints import Saves
from traincheck.check.verdicts import View, instrument_named, judge, reasons
from traincheck.facts.programs import file_of
from traincheck.facts.provider import Facts
from traincheck.handlers import give_back
from traincheck.schema.apis import TELLING, Marks
from traincheck.schema.claims import Invariant, Needs, Schedule
from traincheck.schema.events import (
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import CheckInfo, Report, Violation
from traincheck.schema.protocols import EventSource, Relation, Rule, is_for_run
from traincheck.schema.words import joined

_logger = logging.getLogger(__name__)
_MOST_STEPS = 5  # named in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What to check: the invariants by relation, the rules, and what each needs."""

    rules: tuple[Rule, ...]
    invariants: Mapping[str, tuple[Invariant, ...]]
    relations: Mapping[str, Relation]
    needs: Mapping[str, Needs]
    infos: Mapping[str, CheckInfo]
    unusable: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def sum_up(self, invariants: Iterable[Invariant]) -> tuple[Needs, tuple[str, ...]]:
        """What invariants need together, and their ids."""
        needs = Needs()
        for invariant in invariants:
            needs |= self.needs[invariant.id]
        return needs, tuple(invariant.id for invariant in invariants)


class Process:
    """The monitors of one process, fed with its events. They begin afresh for each process."""

    def __init__(self, checks: Checks, view: View, run: RunSeats, ring: Ring | None) -> None:
        self.ring = ring
        self.keep = None if ring is None else ring.calls.append
        self.unobservable: dict[str, str] = {}
        self.steps = 0
        self.recorded_steps = 0
        self._checks = checks
        self._view = view
        self.seats: list[Seat] = []
        self._retired: list[Seat] = []
        self.guard = Guard(checks.programs)
        self._look = plain_seat(self.guard, SEES)
        self._seat_rules()
        self._seat_invariants()
        self._shared = run.usable(self._observable)
        self.router = self._make_router()

    @property
    def is_training(self) -> bool:
        """Whether steps end here: a DataLoader worker says nothing about what can be observed."""
        return self.steps > 0

    @property
    def program(self) -> str | None:
        """The file name of what was started."""
        return self._view.program

    def spoken_of(self) -> list[str]:
        """Of the invariants that are kept to programs, those that speak of this one."""
        return [
            id_
            for id_, programs in self._checks.programs.items()
            if any(file_of(one) == self.program for one in programs) and self.guard.admits(id_)
        ]

    def step_ended(self, event: StepEvent) -> None:
        if event.complete or event.counters.get("optimizer_step", 0):
            self.steps += 1
            self.recorded_steps += event.recorded
            self.guard.is_whole = True

    def instrument_failed(self, name: str, reason: str) -> None:
        """From here on ``name`` records nothing: who needs it cannot go on."""
        self._view.off[name] = reason
        for seat in list(self.seats):
            why = self._view.lacks(seat.needs)
            if why is not None:
                self.retire(seat, why)
        for seat in self._shared:
            why = self._view.lacks(seat.needs)
            if why is not None:
                self.leave(seat, why)

    def retire(self, seat: Seat, reason: str) -> None:
        """Take a monitor and those that depend on it out; what they have proved so far stands."""
        going = [other for other in self.seats if set(other.check_ids) <= set(seat.check_ids)]
        self.seats = [other for other in self.seats if other not in going]
        self._retired += going
        self.unobservable.update(dict.fromkeys(seat.check_ids, reason))
        self.router = self._make_router()

    def leave(self, seat: Seat, reason: str) -> None:
        """Give no more events to a monitor of the whole run."""
        self._shared = [s for s in self._shared if not set(s.check_ids) <= set(seat.check_ids)]
        self.unobservable.update(dict.fromkeys(seat.check_ids, reason))
        self.router = self._make_router()

    def triggered(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for seat in [*self.seats, *self._retired]:
            counts.update(seat.triggered())
        return {id_: count for id_, count in counts.items() if self.guard.admits(id_)}

    def _make_router(self) -> Router[Seat]:
        seats = [*self.seats, *self._shared]
        if self._checks.programs:
            seats.insert(0, self._look)
        return Router([(seat.gets, seat) for seat in seats])

    def _observable(self, check_id: str) -> bool:
        reason = self._view.lacks(self._checks.needs[check_id])
        if reason is not None:
            self.unobservable[check_id] = reason
        return reason is None

    def _seat_rules(self) -> None:
        facts = Facts()
        own = [rule for rule in self._checks.rules if not is_for_run(rule)]
        for rule in [rule for rule in own if self._observable(rule.info.check_id)]:
            self._sit(partial(rule_seat, rule, facts), (rule.info.check_id,))
        self.seats[:0] = fact_seats(self.seats, facts)

    def _seat_invariants(self) -> None:
        for name, invariants in self._checks.invariants.items():
            if is_for_run(self._checks.relations[name]):
                continue  # RunSeats has its seat
            usable = within_program(invariants, self._view.program)
            usable = tuple(i for i in usable if self._observable(i.id))
            for schedule in (None, self._view.schedule):  # the latter for what is thinned
                is_thin = schedule is not None
                chosen = (i for i in usable if self._thins(i) is is_thin)
                self._seat_relation(self._checks.relations[name], tuple(chosen), schedule)

    def _thins(self, invariant: Invariant) -> bool:
        return self._view.thins(self._checks.needs[invariant.id])

    def _seat_relation(
        self,
        relation: Relation,
        invariants: tuple[Invariant, ...],
        schedule: Schedule | None,
    ) -> None:
        if not invariants:
            return
        needs, ids = self._checks.sum_up(invariants)
        self._sit(lambda: gate_seat(Gate(relation, invariants, schedule), needs, ids), ids)

    def _sit(self, make: Callable[[], Seat], ids: tuple[str, ...]) -> None:
        try:
            self.seats.append(make())
        except Exception as error:  # a broken check must not take the others down
            give_back(error)
            self.unobservable.update(dict.fromkeys(ids, _fault(error)))


class Engine:
    """Checks one run, event by event.

    Args:
        invariants: accepted hypotheses to check.
        rules: built-in checks; the default is none, pass ``traincheck.rules.all_rules()`` for all.
        relations: by name, those the invariants refer to.
        accept: says which violations are not to be reported, and why.
    """

    def __init__(
        self,
        invariants: Iterable[Invariant] = (),
        rules: Iterable[Rule] = (),
        relations: Mapping[str, Relation] | None = None,
        accept: Accept | None = None,
    ) -> None:
        self._checks = _prepare(invariants, rules, relations or {})
        self._run = RunSeats(self._checks.rules, _seats_for_run(self._checks))
        learned = (i for found in self._checks.invariants.values() for i in found)
        self._witness = Witness(learned)
        self.accept = accept
        self._decorate = Decorating()
        self._book = FindingBook(self._checks.infos, accept, self._witness, self._decorate)
        self._processes: dict[tuple[int, str], Process] = {}
        self._violated: dict[str, int] = defaultdict(int)
        self._notes: list[str] = []
        self._gaps: dict[int, dict[int | None, None]] = defaultdict(dict)  # rank -> steps, in order
        self._events = 0
        self._stream: str | None = None
        self._rank: int | None = None
        self._process: Process | None = None
        self._saves = Saves()
        self.wants = Needs(kinds=frozenset({"mark", "step", "checkpoint"}))
        for check_id, needs in self._checks.needs.items():
            if check_id not in self._checks.unusable:
                self.wants |= needs
        if self._checks.programs:
            self.wants |= SEES

    @property
    def infos(self) -> Mapping[str, CheckInfo]:
        """What is to be said about each check, by its id."""
        return self._checks.infos

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations that ``event`` proves, the first of each check about each subject only."""
        self._events += 1
        # Events come in long stretches from one stream: 90 ns less than a dictionary look-up each.
        process = self._process
        if process is None or event.stream != self._stream or event.rank != self._rank:
            process = self._process = self._enter(event)
        kind = event.kind
        router = process.router
        # Router.route by hand: a call less for each event, a fifth of what one costs that nobody
        # wants. By kind, most frequent first.
        seats: tuple[Seat, ...] | None
        if kind == "state":
            table = router.telling if event.change in TELLING else router.changes  # type: ignore[union-attr]
            seats = table.get(event.role, ())  # type: ignore[union-attr]
        elif kind == "call":
            if process.keep is not None:
                process.keep(event)  # type: ignore[arg-type]
            key = (event.api, event.family)  # type: ignore[union-attr]
            seats = router.calls.get(key)
            if seats is None:
                seats = router.learn(key)
        else:
            self._control(process, event)
            seats = process.router.route(event)
        return self._feed(process, seats, event) if seats else ()

    def end(self, mark: MarkEvent) -> None:
        """Tell the checks of the whole run how it ended, before `finish`."""
        for seat in self._run.seats:
            if "mark" in seat.gets.kinds:
                self._take(seat.judge(seat.ask(mark) or ()))

    def finish(self) -> Report:
        """The run ended. No further event may follow."""
        for key in sorted(self._processes):
            process = self._processes[key]
            for seat in list(process.seats):
                try:
                    self._take(seat.finish(), process)
                except Exception as error:  # see _feed
                    give_back(error)
                    self._fail(process, seat, error)
        for seat in list(self._run.seats):
            try:
                self._take(seat.finish())
            except Exception as error:  # see _feed
                give_back(error)
                self._run.fail(seat, _fault(error))
                self._notes.append(f"{_names(seat.check_ids)} was switched off: {_fault(error)}")
        self._notes += self._run.incomplete
        self._tell_other_programs()
        return self.so_far()

    def so_far(self) -> Report:
        """What is known by now; events may follow."""
        unobservable, triggered = self._totals()
        verdicts = judge(sorted(self._checks.infos), self._violated, triggered, unobservable)
        counts = [process.steps for process in self._processes.values()]
        findings = self._book.findings(max(counts, default=0))
        by_rank: Counter[int] = Counter()  # programs that ran one after the other
        recorded: Counter[int] = Counter()
        for (rank, _), process in self._processes.items():
            by_rank[rank] += process.steps
            recorded[rank] += process.recorded_steps
        gaps = [_lost(rank, found) for rank, found in sorted(self._gaps.items())]
        return Report(
            events=self._events,
            steps=max(by_rank.values(), default=0),
            checked_steps=max(recorded.values(), default=0),
            ranks=len({rank for rank, _ in self._processes}),
            verdicts=verdicts,
            findings=[finding for finding in findings if finding.accepted is None],
            notes=(*gaps, *sorted(set(self._notes)), *self._decorate.notes, *reasons(unobservable)),
            infos=self._checks.infos,
            unobservable=unobservable,
            suppressed=[finding for finding in findings if finding.accepted is not None],
            saves=self._saves.all(),
        )

    def _tell_other_programs(self) -> None:
        """Else who renames a script is told that fewer checks were triggered, and not why."""
        training = [process for process in self._processes.values() if process.is_training]
        if training and self._checks.programs:
            asked = {id_ for process in training for id_ in process.spoken_of()}
            here = {process.program for process in training if process.program}
            total = sum(map(len, self._checks.invariants.values()))
            note = others_note(self._checks.programs, asked, here, total)
            self._notes += [note] if note else []

    def _enter(self, event: Event) -> Process:
        self._stream, self._rank = event.stream, event.rank
        key = (event.rank, event.stream.partition("-")[0])
        process = self._processes.get(key)
        if process is None:
            is_told = isinstance(event, MarkEvent) and event.text == Marks.PROCESS
            view = View.of(event) if is_told else View()  # type: ignore[arg-type]
            ring = self._witness.ring(event.rank, view)
            process = self._processes[key] = Process(self._checks, view, self._run, ring)
        return process

    def _control(self, process: Process, event: Event) -> None:
        if isinstance(event, StepEvent):
            process.step_ended(event)
            if process.ring is not None and event.complete and event.step is not None:
                ring, step = process.ring, event.step
                witnessed = partial(self._witness.step_ended, ring, step)
                self._decorate("the comparison with the reference", witnessed, _nothing)
        elif isinstance(event, OptimizerEvent):
            if process.ring is not None:
                process.ring.optimizers.append(event)
        elif isinstance(event, CheckpointEvent):
            self._saves.take(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.INSTRUMENT_DISABLED:
            name = instrument_named(str(event.data.get("instrument")))
            if name is None:
                self._gap(process, event)
            else:
                process.instrument_failed(name, str(event.data.get("reason", "it failed")))
        elif isinstance(event, MarkEvent) and event.text == Marks.DROPPED:
            self._gap(process, event)
        elif isinstance(event, MarkEvent) and event.text == Marks.FOLDED:
            # Rules take absence in an evaluation for nothing; invariants may have learned of it.
            learned = [s for s in process.router.route(event.gap) if s.is_learned]
            self._feed(process, learned, event.gap)

    def _gap(self, process: Process, mark: MarkEvent) -> None:
        """Events were lost: as with steps that were not recorded, what is absent proves nothing."""
        gap = mark.gap
        self._feed(process, process.router.route(gap), gap)
        self._gaps[mark.rank][mark.step] = None

    def _feed(self, process: Process, seats: Iterable[Seat], event: Event) -> Sequence[Violation]:
        new: Sequence[Violation] = ()
        for seat in seats:
            try:
                found = seat.ask(event)
                proofs = found and seat.judge(found)
                if proofs:
                    new = [*new, *self._take(proofs, process)]
            except Exception as error:  # one check's fault must not hide what the others find
                give_back(error)
                self._fail(process, seat, error)
        return new

    def _take(
        self, violations: Iterable[Violation], process: Process | None = None
    ) -> list[Violation]:
        """Count violations; those that are the first of their check about their subject."""
        new = []
        for violation in violations if process is None else process.guard.believed(violations):
            if violation.withdrawn:
                self._withdraw(violation)
                new.append(violation)
                continue
            self._violated[violation.check_id] += 1
            if self._book.add(violation):
                new.append(violation)
                ring = None if process is None else process.ring
                noted = partial(self._witness.note, violation, ring)
                self._decorate("the comparison with the reference", noted, _nothing)
        return new

    def _withdraw(self, violation: Violation) -> None:
        """Forget a provisional violation: the check holds."""
        check_id = violation.check_id
        self._violated[check_id] -= self._book.withdraw(violation)
        if self._violated[check_id] <= 0:
            del self._violated[check_id]

    def _fail(self, process: Process, seat: Seat, error: Exception) -> None:
        _logger.debug("a monitor failed", exc_info=error)
        if self._run.fail(seat, _fault(error)):
            for other in self._processes.values():
                other.leave(seat, _fault(error))
        else:
            process.retire(seat, _fault(error))
        self._notes.append(f"{_names(seat.check_ids)} was switched off: {_fault(error)}")

    def _totals(self) -> tuple[dict[str, str], dict[str, int]]:
        processes = [self._processes[key] for key in sorted(self._processes)]
        # Only processes that train say what could be seen, unless there is none.
        telling = [p for p in processes if p.is_training] or processes
        unobservable = dict(self._checks.unusable)
        for process in telling:
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
        on_violation: told of each violation that is the first of its check about its subject.
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


def _prepare(
    invariants: Iterable[Invariant], rules: Iterable[Rule], relations: Mapping[str, Relation]
) -> Checks:
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
        needs[invariant.id], infos[invariant.id] = Needs(), _bare_info(invariant)
        if relation is None:
            unusable[invariant.id] = f"this version knows no relation {claim.relation!r}"
            continue
        try:
            relation.decider([claim])  # so that one bad claim does not take its relation down
            asked = invariant.needs  # a relation cannot know where a call is one of these
            needs[invariant.id] = replace(
                relation.needs(claim), level=asked.level, packages=asked.packages
            )
            infos[invariant.id] = relation.info(claim, invariant.id, invariant.text)
            by_relation[claim.relation].append(invariant)
        except Exception as error:  # parameters that no version of the relation ever wrote
            unusable[invariant.id] = _fault(error)
    return Checks(
        rules=rules,
        invariants={name: tuple(found) for name, found in sorted(by_relation.items())},
        relations=relations,
        needs=needs,
        infos=infos,
        unusable=unusable,
        programs=kept_to_programs(i for found in by_relation.values() for i in found),
    )


def _seats_for_run(checks: Checks) -> list[Seat]:
    """A seat for each relation that speaks of all ranks."""
    seats = []
    for name, invariants in checks.invariants.items():
        if is_for_run(checks.relations[name]):
            needs, ids = checks.sum_up(invariants)
            seats.append(gate_seat(Gate(checks.relations[name], invariants), needs, ids))
    return seats


def _bare_info(invariant: Invariant) -> CheckInfo:
    return CheckInfo(
        check_id=invariant.id,
        kind="invariant",
        code=invariant.hypothesis.relation,
        severity="info",
        title=invariant.text,
    )


def _lost(rank: int, steps: Iterable[int | None]) -> str:
    """That events are missing, and where."""
    first = [str(step) for step in steps]
    said = f"step{'s' * (len(first) > 1)} {joined(first, _MOST_STEPS)}"
    return f"events were lost at {said} of rank {rank}: what is absent there proves nothing"


def _nothing() -> None:
    """In place of an addition that failed."""


def _fault(error: Exception) -> str:
    return f"the check failed with {type(error).__name__}: {error}"


def _names(check_ids: Sequence[str]) -> str:
    return joined(check_ids, 1)
