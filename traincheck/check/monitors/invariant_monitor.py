"""All invariants of one relation as one monitor: preconditions are applied here.

What holds is decided by the relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from traincheck.check.monitors.sampled_view import Thinned
from traincheck.schema.claims import Context, Hypothesis, Invariant, Precondition, Schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Example, Violation
from traincheck.schema.protocols import Relation

_MOST_KNOWN = 256  # answers remembered
_MOST_ASKED = 1 << 14  # contexts of claims remembered


def within_program(invariants: Iterable[Invariant], program: str | None) -> tuple[Invariant, ...]:
    """Those that speak of a program, with what is left of their preconditions to be asked there."""
    found = []
    for invariant in invariants:
        left = invariant.precondition.within(program)
        if left is invariant.precondition:
            found.append(invariant)
        elif left is not None:
            found.append(replace(invariant, precondition=left))
    return tuple(found)


@dataclass(slots=True)
class _Question:
    """A claim under a precondition, and the invariants that ask it. triggered: its examples."""

    condition: Precondition | None
    invariants: list[Invariant]
    triggered: int = 0


@dataclass(slots=True)
class _Asked:
    """The questions about a claim that are asked in a context; times: how often, by now."""

    context: Context  # kept, so that its id is not another's
    questions: tuple[_Question, ...]
    times: int = 0

    def count(self, times: int) -> None:
        for question in self.questions:
            question.triggered += times


@dataclass(slots=True)
class _Known:
    """An answer in which all examples hold, and what it answers; times: how often it came again."""

    examples: tuple[tuple[int, Example], ...]
    asked: list[_Asked]
    times: int = 0


class Gate:
    """Runs one relation's decider for many invariants and lets through what breaks one of them.

    Args:
        relation: whose decider judges.
        invariants: all of this relation. What several of them claim is decided once.
        schedule: where calls or looks were thinned, the steps in which they were not.

    Attributes:
        decider: who is fed without a call in between gives what it answers to `judge`.
    """

    def __init__(
        self,
        relation: Relation,
        invariants: Sequence[Invariant],
        schedule: Schedule | None = None,
    ) -> None:
        claims: dict[bytes, Hypothesis] = {}
        self._questions: list[_Question] = []
        known: dict[tuple[bytes, Precondition], _Question] = {}
        by_claim: dict[bytes, list[_Question]] = {}
        for invariant in invariants:
            key = orjson.dumps(invariant.hypothesis.params, option=orjson.OPT_SORT_KEYS)
            claims.setdefault(key, invariant.hypothesis)
            condition = invariant.precondition
            question = known.get((key, condition))
            if question is None:
                question = _Question(None if condition.is_always else condition, [])
                known[key, condition] = question
                by_claim.setdefault(key, []).append(question)
                self._questions.append(question)
            question.invariants.append(invariant)
        decider = relation.decider(list(claims.values()))
        self.decider = decider if schedule is None else Thinned(decider, schedule)
        self._by_claim = [by_claim[key] for key in claims]
        # A decider gives equal contexts as one object, and what it has to say in every step, too.
        self._asked: dict[tuple[int, int], _Asked] = {}  # by claim and id of the context
        self._known: dict[int, _Known] = {}

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations in the order the decider gives their examples."""
        return self.judge(self.decider.observe(event))

    def finish(self) -> Sequence[Violation]:
        return self.judge(self.decider.finish())

    @property
    def triggered(self) -> int:
        return sum(self.triggered_by_check().values())

    def triggered_by_check(self) -> dict[str, int]:
        """How many examples each invariant's precondition let through."""
        self._settle()
        return {
            invariant.id: question.triggered
            for question in self._questions
            for invariant in question.invariants
        }

    def judge(self, examples: Iterable[tuple[int, Example]]) -> Sequence[Violation]:
        """What of the decider's examples breaks an invariant."""
        if not examples:
            return ()
        known = self._known.get(id(examples))
        if known is not None and known.examples is examples:
            known.times += 1
            return ()
        found: list[Violation] = []
        answered = []
        for claim, example in examples:
            asked = self._asked.get((claim, id(example.context)))
            if asked is None:
                asked = self._ask(claim, example.context)
            asked.times += 1
            answered.append(asked)
            if not example.holds:
                for question in asked.questions:
                    found += [_violation(invariant, example) for invariant in question.invariants]
        if not found and isinstance(examples, tuple):
            if len(self._known) >= _MOST_KNOWN:
                self._count_known()
            self._known[id(examples)] = _Known(examples, answered)
        return found

    def _ask(self, claim: int, context: Context) -> _Asked:
        """Test the preconditions of a claim in a context that was not met before."""
        if len(self._asked) >= _MOST_ASKED:
            self._settle()
        questions = (q for q in self._by_claim[claim] if _is_met(q.condition, context))
        asked = self._asked[claim, id(context)] = _Asked(context, tuple(questions))
        return asked

    def _settle(self) -> None:
        """Count what is remembered, and forget it."""
        self._count_known()
        for asked in self._asked.values():
            asked.count(asked.times)
        self._asked.clear()

    def _count_known(self) -> None:
        for known in self._known.values():
            for asked in known.asked:
                asked.count(known.times)
        self._known.clear()


def _is_met(condition: Precondition | None, context: Context) -> bool:
    return condition is None or condition.holds(context)


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
