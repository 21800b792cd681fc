"""All invariants of one relation as one monitor: preconditions are applied here.

What holds is decided by the relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from traincheck.schema.claims import Context, Hypothesis, Invariant, Precondition
from traincheck.schema.events import Event
from traincheck.schema.findings import Example, Violation
from traincheck.schema.protocols import Relation

_MOST_KNOWN = 256  # answers remembered


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
class _Known:
    """An answer in which all examples hold. counts: by index of the question; times: how often."""

    examples: tuple[tuple[int, Example], ...]
    counts: dict[int, int]
    times: int = 1


@dataclass(slots=True)
class _Question:
    """A claim under a precondition, and the invariants that ask it. triggered: its examples."""

    condition: Precondition | None
    invariants: list[Invariant]
    triggered: int = 0


class Gate:
    """Runs one relation's decider for many invariants and lets through what breaks one of them.

    Args:
        relation: whose decider judges.
        invariants: all of this relation. What several of them claim is decided once.
    """

    def __init__(self, relation: Relation, invariants: Sequence[Invariant]) -> None:
        claims: dict[bytes, Hypothesis] = {}
        self._questions: list[_Question] = []
        known: dict[tuple[bytes, Precondition], _Question] = {}
        by_claim: dict[bytes, list[int]] = {}
        # Equal preconditions become one object, so that each context is tested once for all.
        shared: dict[Precondition, Precondition] = {}
        for invariant in invariants:
            key = orjson.dumps(invariant.hypothesis.params, option=orjson.OPT_SORT_KEYS)
            claims.setdefault(key, invariant.hypothesis)
            condition = shared.setdefault(invariant.precondition, invariant.precondition)
            question = known.get((key, condition))
            if question is None:
                question = _Question(None if condition.is_always else condition, [])
                known[key, condition] = question
                by_claim.setdefault(key, []).append(len(self._questions))
                self._questions.append(question)
            question.invariants.append(invariant)
        self._decider = relation.decider(list(claims.values()))
        self._asked = [by_claim[key] for key in claims]  # claim -> questions
        # A decider that has the same to say in every step says it with the same object.
        self._known: dict[int, _Known] = {}

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations in the order the decider gives their examples."""
        examples = self._decider.observe(event)
        if not examples:
            return ()
        known = self._known.get(id(examples))
        if known is not None and known.examples is examples:
            known.times += 1
            return ()
        return self._judge(examples)

    def finish(self) -> Sequence[Violation]:
        return self._judge(self._decider.finish())

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

    def _judge(self, examples: Iterable[tuple[int, Example]]) -> list[Violation]:
        found = []
        counts: dict[int, int] = {}
        # Many invariants share a precondition, and a decider gives them the same context.
        tested: dict[tuple[int, int], bool] = {}
        keep_alive: list[Context] = []  # so that no context is freed and its id used again
        for claim, example in examples:
            for index in self._asked[claim]:
                question = self._questions[index]
                condition = question.condition
                if condition is not None and not _holds(condition, example, tested, keep_alive):
                    continue
                counts[index] = counts.get(index, 0) + 1
                if not example.holds:
                    found += [_violation(invariant, example) for invariant in question.invariants]
        if found or not isinstance(examples, tuple):
            self._count(counts, 1)
        else:
            if len(self._known) >= _MOST_KNOWN:
                self._settle()
            self._known[id(examples)] = _Known(examples, counts)
        return found

    def _settle(self) -> None:
        """Count what is remembered, and forget it."""
        for known in self._known.values():
            self._count(known.counts, known.times)
        self._known.clear()

    def _count(self, counts: dict[int, int], times: int) -> None:
        for index, count in counts.items():
            self._questions[index].triggered += count * times


def _holds(
    condition: Precondition,
    example: Example,
    tested: dict[tuple[int, int], bool],
    keep_alive: list[Context],
) -> bool:
    key = (id(condition), id(example.context))
    answer = tested.get(key)
    if answer is None:
        answer = tested[key] = condition.holds(example.context)
        keep_alive.append(example.context)
    return answer


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
        evidence=example.evidence,
    )
