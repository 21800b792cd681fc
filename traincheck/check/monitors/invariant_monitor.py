"""One monitor for all invariants of a relation, which applies their preconditions.

The relation's decider says where a claim holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from traincheck.readings.provider import RunStates, uses_of
from traincheck.schema.claims import Context, Hypothesis, Invariant, Precondition, Schedule
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Example, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.protocols import Decider, Relation


# Claims about them are decided in the steps that were recorded in full, and on calls in
# evaluation. In all other steps absence proves nothing, as in steps that sampling skips.
def in_sampled_view(event: Event, schedule: Schedule) -> Event | None:
    """``event`` as checks of sampled calls or scans get it; None where they do not."""
    if schedule.includes(event.step):
        return event
    if isinstance(event, CallEvent):
        # A call with grad enabled belongs to the training loop, whatever the stage.
        return event if event.stage == EVAL_STAGE and not event.grad_enabled else None
    return event.skipped if isinstance(event, StepEvent) and event.recorded else event


class SampledDecider:
    """A decider of claims about sampled calls or scans."""

    def __init__(self, decider: Decider, schedule: Schedule) -> None:
        self._decider = decider
        self._schedule = schedule

    def observe(self, event: Event) -> Iterable[tuple[int, Example]]:
        seen = in_sampled_view(event, self._schedule)
        return () if seen is None else self._decider.observe(seen)

    def finish(self) -> Iterable[tuple[int, Example]]:
        return self._decider.finish()


_MAX_ANSWERS = 256  # remembered
_MAX_CONTEXTS = 1 << 14  # remembered, of all claims


def restricted_to_program(
    invariants: Iterable[Invariant], program: str | None
) -> tuple[Invariant, ...]:
    """The invariants that apply to a program, without the conditions that ask for the program."""
    found = []
    for invariant in invariants:
        left = invariant.precondition.within(program)
        if left is invariant.precondition:
            found.append(invariant)
        elif left is not None:
            found.append(replace(invariant, precondition=left))
    return tuple(found)


def renamed_to_program(
    invariants: Iterable[Invariant], program: str | None
) -> tuple[Invariant, ...]:
    """The invariants that are restricted to programs, as claims about ``program``.

    They apply if this is one of those programs, and its script has another file name now.
    """
    found = []
    for invariant in invariants:
        left = (
            invariant.precondition.under_any_name() if invariant.precondition.programs() else None
        )
        if left is not None:
            claim = invariant.hypothesis
            if "program" in claim.params:
                claim = replace(claim, params={**claim.params, "program": program})
            found.append(replace(invariant, precondition=left, hypothesis=claim))
    return tuple(found)


@dataclass(slots=True)
class _GuardedClaim:
    """A claim under a precondition.

    Attributes:
        condition: the precondition; None for always.
        invariants: those that make this claim under this precondition.
        triggered: number of examples that the precondition let through.
    """

    condition: Precondition | None
    invariants: list[Invariant]
    triggered: int = 0


@dataclass(slots=True)
class _ContextEntry:
    """The guarded forms of a claim that apply in a context.

    Attributes:
        context: kept alive, so that its id is not reused.
        claims: those whose precondition the context satisfies.
        times: how often the context occurred since the counts were last flushed.
    """

    context: Context
    claims: tuple[_GuardedClaim, ...]
    times: int = 0

    def flush(self, times: int) -> None:
        for claim in self.claims:
            claim.triggered += times


@dataclass(slots=True)
class _CachedAnswer:
    """An answer of a decider in which all examples hold.

    Attributes:
        examples: the answer, kept alive so that its id is not reused.
        entries: one of each example.
        times: how often the same object was returned again.
    """

    examples: tuple[tuple[int, Example], ...]
    entries: list[_ContextEntry]
    times: int = 0


class InvariantMonitor:
    """Runs one relation's decider for many invariants and reports what breaks one of them.

    Args:
        relation: its decider judges.
        invariants: all of this relation. A claim that several of them make is decided once.
        schedule: where calls or scans were sampled, the steps in which they were recorded in full.
        run_states: those that the decider may use.

    Attributes:
        uses: the kinds of run states that the decider uses.
        decider: may be fed directly; its answers are then to be given to `judge`.
    """

    def __init__(
        self,
        relation: Relation,
        invariants: Sequence[Invariant],
        schedule: Schedule | None = None,
        run_states: RunStates | None = None,
    ) -> None:
        claims: dict[bytes, Hypothesis] = {}
        self._guarded: list[_GuardedClaim] = []
        known: dict[tuple[bytes, Precondition], _GuardedClaim] = {}
        by_claim: dict[bytes, list[_GuardedClaim]] = {}
        for invariant in invariants:
            key = orjson.dumps(invariant.hypothesis.params, option=orjson.OPT_SORT_KEYS)
            claims.setdefault(key, invariant.hypothesis)
            condition = invariant.precondition
            guarded = known.get((key, condition))
            if guarded is None:
                guarded = _GuardedClaim(None if condition.is_always else condition, [])
                known[key, condition] = guarded
                by_claim.setdefault(key, []).append(guarded)
                self._guarded.append(guarded)
            guarded.invariants.append(invariant)
        decider = relation.decider(list(claims.values()))
        self.uses = uses_of((run_states or RunStates()).bind(decider))
        self.decider = decider if schedule is None else SampledDecider(decider, schedule)
        self._by_claim = [by_claim[key] for key in claims]
        # Deciders return equal contexts, and equal answers, as one object (protocols.Decider).
        self._entries: dict[tuple[int, int], _ContextEntry] = {}  # by claim and id of the context
        self._answers: dict[int, _CachedAnswer] = {}

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations in the order of the decider's examples."""
        return self.judge(self.decider.observe(event))

    def finish(self) -> Sequence[Violation]:
        """Violations that are certain at the end of the run."""
        return self.judge(self.decider.finish())

    @property
    def triggered(self) -> int:
        """Number of examples that any precondition let through."""
        return sum(self.triggered_by_check().values())

    def triggered_by_check(self) -> dict[str, int]:
        """Number of examples that each invariant's precondition let through."""
        self._flush()
        return {
            invariant.id: guarded.triggered
            for guarded in self._guarded
            for invariant in guarded.invariants
        }

    def judge(self, examples: Iterable[tuple[int, Example]]) -> Sequence[Violation]:
        """The violations among an answer of the decider."""
        if not examples:
            return ()
        cached = self._answers.get(id(examples))
        if cached is not None and cached.examples is examples:
            cached.times += 1
            return ()
        found: list[Violation] = []
        entries = []
        for claim, example in examples:
            entry = self._entries.get((claim, id(example.context)))
            if entry is None:
                entry = self._enter(claim, example.context)
            entry.times += 1
            entries.append(entry)
            if not example.holds:
                for guarded in entry.claims:
                    found += [_violation(invariant, example) for invariant in guarded.invariants]
        if not found and isinstance(examples, tuple):
            if len(self._answers) >= _MAX_ANSWERS:
                self._flush_answers()
            self._answers[id(examples)] = _CachedAnswer(examples, entries)
        return found

    def _enter(self, claim: int, context: Context) -> _ContextEntry:
        """Test the preconditions of a claim in a new context."""
        if len(self._entries) >= _MAX_CONTEXTS:
            self._flush()
        claims = (
            g for g in self._by_claim[claim] if g.condition is None or g.condition.holds(context)
        )
        entry = self._entries[claim, id(context)] = _ContextEntry(context, tuple(claims))
        return entry

    def _flush(self) -> None:
        """Add the remembered counts to the claims, and forget the contexts."""
        self._flush_answers()
        for entry in self._entries.values():
            entry.flush(entry.times)
        self._entries.clear()

    def _flush_answers(self) -> None:
        for cached in self._answers.values():
            for entry in cached.entries:
                entry.flush(cached.times)
        self._answers.clear()


def _violation(invariant: Invariant, example: Example) -> Violation:
    return Violation(
        check_id=invariant.id,
        step=example.step,
        rank=example.rank,
        stage=example.stage,
        subject=example.subject,
        symptom=example.symptom,
        message=invariant.text,
        expected=example.expected,
        observed=example.observed,
        topic=example.topic,
        measured=example.measured,
        evidence=example.evidence,
    )
