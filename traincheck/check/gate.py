"""All invariants of one relation as one monitor.

Applies preconditions; what holds is decided by the relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traincheck.schema.claims import Context, Invariant, Precondition
from traincheck.schema.events import Event
from traincheck.schema.findings import Example, Violation
from traincheck.schema.protocols import Relation


class Gate:
    """Runs one relation's decider for many invariants and lets through what breaks one of them.

    Args:
        relation: whose decider judges.
        invariants: all of this relation, in the order the decider's indices refer to.
    """

    def __init__(self, relation: Relation, invariants: Sequence[Invariant]) -> None:
        self._invariants = tuple(invariants)
        self._decider = relation.decider([invariant.hypothesis for invariant in invariants])
        # Equal preconditions become one object, so that each context is tested once for all of
        # them.
        shared: dict[Precondition, Precondition] = {}
        self._conditions = [
            None
            if invariant.precondition.is_always
            else shared.setdefault(invariant.precondition, invariant.precondition)
            for invariant in invariants
        ]
        self._triggered = [0] * len(self._invariants)

    def observe(self, event: Event) -> Sequence[Violation]:
        """Violations in the order the decider gives their examples."""
        examples = self._decider.observe(event)
        return self._judge(examples) if examples else ()

    def finish(self) -> Sequence[Violation]:
        return self._judge(self._decider.finish())

    @property
    def triggered(self) -> int:
        return sum(self._triggered)

    def triggered_by_check(self) -> dict[str, int]:
        """How many examples each invariant's precondition let through."""
        return {invariant.id: count for invariant, count in zip(self._invariants, self._triggered)}

    def _judge(self, examples: Iterable[tuple[int, Example]]) -> list[Violation]:
        found = []
        # Many invariants share a precondition and a decider hands the same context to all of them.
        known: dict[tuple[int, int], bool] = {}
        keep_alive: list[Context] = []  # so that no context is freed and its id used again
        for index, example in examples:
            condition = self._conditions[index]
            if condition is not None and not _holds(condition, example, known, keep_alive):
                continue
            self._triggered[index] += 1
            if not example.holds:
                found.append(_violation(self._invariants[index], example))
        return found


def _holds(
    condition: Precondition,
    example: Example,
    known: dict[tuple[int, int], bool],
    keep_alive: list[Context],
) -> bool:
    key = (id(condition), id(example.context))
    answer = known.get(key)
    if answer is None:
        answer = known[key] = condition.holds(example.context)
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
