"""Learn when a hypothesis holds: a short condition that excludes every counterexample.

Any of: all of. At most two clauses of at most three conditions. None is better than one, one is
better than two, and a condition that explains is better than one that happens to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from traincheck.infer.view import Features
from traincheck.schema.claims import Condition, Precondition, Scalar

MAX_CLAUSES = 2
MAX_CONDITIONS = 3
_BREADTH = 24  # candidates that are combined with each other
_COVER = 0.95  # share of the positive examples that a precondition must let through

# Cost of a feature: those that explain first, those that name a place last. Others lie between.
_COST = {
    "training": 0,
    "requires_grad": 1,
    "stage": 2,
    "grad_enabled": 3,
    "autocast": 4,
    "has_gradient": 5,
    "in_optimizer": 6,
    "ndim": 12,
    "leaf": 14,
    "model": 16,
    "module_class": 18,
}
_OTHER_COST = 10
# Where only one value of these was ever seen, nothing is claimed about the other.
_SCOPES = ("grad_enabled", "training")


@dataclass(frozen=True, slots=True)
class Learned:
    """A precondition and what it lets through. candidates: conditions it was chosen from."""

    precondition: Precondition
    positive: int
    excluded: int
    candidates: int = 1

    @property
    def conditions(self) -> int:
        return sum(len(clause) for clause in self.precondition.clauses)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A conjunction. rows: bit i is set where it holds in row i."""

    conditions: tuple[Condition, ...]
    rows: int
    cost: int


def learn(counts: Mapping[Features, tuple[int, int]]) -> Learned | None:
    """The simplest precondition that lets through no negative example; None when there is none."""
    table = [(dict(features), *counts[features]) for features in sorted(counts, key=repr)]
    positive = sum(row[1] for row in table)
    negative = sum(row[2] for row in table)
    if not positive:
        return None
    if not negative:
        scope = _scope(table)
        return Learned(Precondition(clauses=(scope,) if scope else ()), positive, 0)
    singles = sorted(_singles(table), key=lambda c: (c.cost, repr(c.conditions)))
    bad = _bits(row[2] > 0 for row in table)
    chosen = _search(table, singles, bad, _COVER * positive)
    if chosen is None or sum(len(c.conditions) for c in chosen) >= len(table):
        return None  # not simpler than what it is to explain
    covered = 0
    for clause in chosen:
        covered |= clause.rows
    inside = [row for i, row in enumerate(table) if covered >> i & 1]
    scope = _scope(inside)
    clauses = tuple((*clause.conditions, *_missing(scope, clause.conditions)) for clause in chosen)
    held = sum(row[1] for row in inside)
    return Learned(Precondition(clauses=clauses), held, negative, len(singles))


def _search(
    table: Sequence[tuple[dict[str, Scalar], int, int]],
    singles: Sequence[_Candidate],
    bad: int,
    wanted: float,
) -> tuple[_Candidate, ...] | None:
    def cover(rows: int) -> int:
        return sum(row[1] for i, row in enumerate(table) if rows >> i & 1)

    # A conjunction lets through no more than each of its parts.
    wide = [c for c in singles if cover(c.rows) >= wanted]
    for size in range(1, MAX_CONDITIONS + 1):
        found = [
            c for c in _conjunctions(wide, size) if not c.rows & bad and cover(c.rows) >= wanted
        ]
        if found:
            return (min(found, key=_order),)
    narrow = [c for size in (1, 2) for c in _conjunctions(singles[:_BREADTH], size)]
    clean = sorted((c for c in narrow if c.rows and not c.rows & bad), key=_order)[:_BREADTH]
    pairs = [p for p in combinations(clean, MAX_CLAUSES) if cover(p[0].rows | p[1].rows) >= wanted]
    if not pairs:
        return None
    return min(pairs, key=lambda p: (sum(len(c.conditions) for c in p), p[0].cost + p[1].cost))


def _order(candidate: _Candidate) -> tuple[int, int, str]:
    return len(candidate.conditions), candidate.cost, repr(candidate.conditions)


def _conjunctions(singles: Sequence[_Candidate], size: int) -> Iterator[_Candidate]:
    for parts in combinations(singles[:_BREADTH] if size > 1 else singles, size):
        features = {part.conditions[0].feature for part in parts}
        if len(features) < size:
            continue
        rows = parts[0].rows
        for part in parts[1:]:
            rows &= part.rows
        yield _Candidate(
            tuple(part.conditions[0] for part in parts), rows, sum(part.cost for part in parts)
        )


def _singles(table: Sequence[tuple[dict[str, Scalar], int, int]]) -> Iterator[_Candidate]:
    features = sorted({feature for row in table for feature in row[0]})
    for feature in features:
        cost = _COST.get(feature, _OTHER_COST)
        values = {row[0][feature] for row in table if feature in row[0]}
        if len(values) < 2:  # noqa: PLR2004  # a feature that never differs explains nothing
            continue
        for condition, extra in _conditions(feature, values):
            rows = _bits(condition.holds(row[0]) for row in table)
            yield _Candidate((condition,), rows, cost + extra)


def _conditions(feature: str, values: set[Scalar]) -> Iterator[tuple[Condition, int]]:
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        for value in sorted(values, key=float)[:-1]:  # type: ignore[arg-type]
            yield Condition(feature=feature, op=">", value=value), 1
            yield Condition(feature=feature, op="<=", value=value), 1
        return
    is_binary = values <= {True, False}
    for value in sorted(values, key=repr):
        yield Condition(feature=feature, op="==", value=value), 0
        if not is_binary:
            yield Condition(feature=feature, op="!=", value=value), 1


def _scope(table: Sequence[tuple[dict[str, Scalar], int, int]]) -> tuple[Condition, ...]:
    found = []
    for feature in _SCOPES:
        values = {row[0].get(feature) for row in table}
        if len(values) == 1 and None not in values:
            found.append(Condition(feature=feature, op="==", value=values.pop()))
    return tuple(found)


def _missing(scope: Sequence[Condition], conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    known = {condition.feature for condition in conditions}
    return tuple(condition for condition in scope if condition.feature not in known)


def _bits(flags: Iterable[bool]) -> int:
    bits = 0
    for i, flag in enumerate(flags):
        bits |= bool(flag) << i
    return bits
