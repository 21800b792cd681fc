"""Learn when a hypothesis holds: a short condition that excludes every counterexample.

Any of: all of. At most two clauses of at most three conditions. None is better than one, one is
better than two, and a condition that explains is better than one that happens to fit.

There are two levels: what is said of every program is kept to the circumstances in which it was
seen, and must have been seen in as many programs as the relation asks for. What is said of the
programs that were seen is kept to these by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from traincheck.facts.programs import alike
from traincheck.infer.view import Features
from traincheck.relations.phrasing import is_private
from traincheck.schema.claims import PROGRAM, Condition, Precondition, Scalar

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
    "has_step": 5,
    "in_optimizer": 6,
    "ndim": 12,
    "leaf": 14,
    "model": 16,
    "module_class": 18,
}
_OTHER_COST = 10
# A model with frozen parts may be kept in whatever mode suits them: each program has its own.
_FROZEN = "frozen"
# Where only one value of these was ever seen, nothing is claimed about the other.
_SCOPES = ("grad_enabled", "training")
# Nor, of other programs, of these: a program that freezes nothing does not know what freezing does.
WIDE_SCOPES = (*_SCOPES, _FROZEN, "has_gradient", "has_step", "requires_grad")
# Their values mean nothing elsewhere.
_PRIVATE = "model"
_CLASS = "module_class"


@dataclass(frozen=True, slots=True)
class Learned:
    """A precondition and what it lets through.

    candidates: conditions it was chosen from. is_own: it holds in programs of certain names only.
    """

    precondition: Precondition
    positive: int
    excluded: int
    candidates: int = 1
    is_own: bool = False

    @property
    def conditions(self) -> int:
        """How many were chosen; that of the program was not."""
        chosen = {
            tuple(c for c in clause if c.feature != PROGRAM) for clause in self.precondition.clauses
        }
        return sum(len(clause) for clause in chosen)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A conjunction. rows: bit i is set where it holds in row i."""

    conditions: tuple[Condition, ...]
    rows: int
    cost: int


Counts = Mapping[Features, tuple[int, int]]


def levels(
    counts: Counts,
    reach: int | None,
    is_enough: Callable[[Learned], bool],
    silent: Collection[str] = (),
) -> list[Learned]:
    """What can be said of every program, then what can be said of those that were seen.

    Args:
        counts: of positive and negative examples, by context.
        reach: in how many programs a claim must hold to be made of every one; None: never.
        is_enough: whether there is evidence enough. What has too little is given only when
            nothing else is there to give.
        silent: programs that could have shown the claim and do not.
    """
    by_program = _by_program(counts)
    if None in by_program:  # nobody said which program it was
        learned = None if silent else learn(_joined(by_program.values()))
        return [] if learned is None else [learned]
    found = []
    if reach is not None and not silent:
        wide = learn(_joined(by_program.values()), is_wide=True)
        if wide is not None and _programs(by_program, wide.precondition) >= reach:
            found.append(wide)
    own = {
        name: learn(some)
        for name, some in sorted(by_program.items(), key=_name)
        if not any(alike(name or "", other) for other in silent)
    }
    known = {name: learned for name, learned in own.items() if learned is not None}
    sure = {name: learned for name, learned in known.items() if is_enough(_own({name: learned}))}
    if sure or (known and not found):
        found.append(_own(sure or known))
    return found


def _name(item: tuple[str | None, Any]) -> str:
    return item[0] or ""


def _by_program(counts: Counts) -> dict[str | None, dict[Features, tuple[int, int]]]:
    found: dict[str | None, dict[Features, tuple[int, int]]] = {}
    for features, count in counts.items():
        program = next((str(value) for name, value in features if name == PROGRAM), None)
        rest = tuple(pair for pair in features if pair[0] != PROGRAM)
        found.setdefault(program, {})[rest] = count
    return found


def _joined(tables: Iterable[Counts]) -> dict[Features, tuple[int, int]]:
    found: dict[Features, tuple[int, int]] = {}
    for table in tables:
        for features, (positive, negative) in table.items():
            mine = found.get(features, (0, 0))
            found[features] = (mine[0] + positive, mine[1] + negative)
    return found


def _programs(by_program: Mapping[str | None, Counts], precondition: Precondition) -> int:
    """In how many programs there was an example that the precondition lets through."""
    return sum(
        any(count[0] and precondition.holds(dict(features)) for features, count in table.items())
        for table in by_program.values()
    )


def _own(found: Mapping[str | None, Learned]) -> Learned:
    """What was learned in several programs, each by its name. Sure as the least sure of them."""
    clauses = tuple(
        (Condition(feature=PROGRAM, op="==", value=name), *clause)
        for name, learned in found.items()
        for clause in learned.precondition.clauses or ((),)
    )
    weakest = min(found.values(), key=lambda learned: learned.positive)
    return Learned(
        Precondition(clauses=clauses),
        weakest.positive,
        sum(learned.excluded for learned in found.values()),
        max(learned.candidates for learned in found.values()),
        is_own=True,
    )


def learn(counts: Counts, *, is_wide: bool = False) -> Learned | None:
    """The simplest precondition that lets through no negative example; None when there is none.

    is_wide: it is to mean something in other programs, and to be kept to what was seen.
    """
    table = [(dict(features), *counts[features]) for features in sorted(counts, key=repr)]
    if is_wide:
        table = [row for row in table if not row[0].get(_FROZEN)]
    positive = sum(row[1] for row in table)
    negative = sum(row[2] for row in table)
    if not positive:
        return None
    if not negative:
        scope = _scope(table, is_wide)
        return Learned(Precondition(clauses=(scope,) if scope else ()), positive, 0)
    singles = sorted(_singles(table, is_wide), key=lambda c: (c.cost, repr(c.conditions)))
    bad = _bits(row[2] > 0 for row in table)
    # One that lets all of them through first: how many a sample holds of each then does not matter.
    found = (_search(table, singles, bad, share * positive) for share in (1.0, _COVER))
    chosen = next((c for c in found if c is not None and _is_simpler(c, table)), None)
    if chosen is None:
        return None
    covered = 0
    for clause in chosen:
        covered |= clause.rows
    inside = [row for i, row in enumerate(table) if covered >> i & 1]
    scope = _scope(inside, is_wide)
    clauses = tuple((*clause.conditions, *_missing(scope, clause.conditions)) for clause in chosen)
    held = sum(row[1] for row in inside)
    return Learned(Precondition(clauses=clauses), held, negative, len(singles))


def _is_simpler(clauses: Sequence[_Candidate], table: Sequence[object]) -> bool:
    """Whether it takes fewer words than what it is to explain."""
    return sum(len(clause.conditions) for clause in clauses) < len(table)


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


def _singles(
    table: Sequence[tuple[dict[str, Scalar], int, int]], is_wide: bool
) -> Iterator[_Candidate]:
    features = sorted({feature for row in table for feature in row[0]})
    if is_wide:
        features = [feature for feature in features if feature != _PRIVATE]
    for feature in features:
        cost = _COST.get(feature, _OTHER_COST)
        values = {row[0][feature] for row in table if feature in row[0]}
        if len(values) < 2:  # noqa: PLR2004  # a feature that never differs explains nothing
            continue
        for condition, extra in _conditions(feature, values):
            if is_wide and feature == _CLASS and is_private(str(condition.value)):
                continue
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


def _scope(
    table: Sequence[tuple[dict[str, Scalar], int, int]], is_wide: bool
) -> tuple[Condition, ...]:
    found = []
    for feature in WIDE_SCOPES if is_wide else _SCOPES:
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
