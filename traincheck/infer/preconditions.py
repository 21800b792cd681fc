"""Learn when a hypothesis holds: a short condition that excludes every counterexample.

A precondition is a disjunction of at most two conjunctions of at most three conditions. Fewer
conditions are better, and so are features that explain.

There are two scopes. A precondition for every program is limited to the circumstances that were
seen, which must have occurred in as many programs as the relation requires. A precondition for the
programs seen names these programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from traincheck.infer.replay_views import Features
from traincheck.readings.programs import alike, core_of, file_of
from traincheck.relations.phrasing import is_user_api, of_programs
from traincheck.schema.claims import PROGRAM, Condition, Precondition, Scalar
from traincheck.schema.words import listed

MAX_CLAUSES = 2
MAX_CONDITIONS = 3
_BREADTH = 24  # number of candidates that are combined
_COVER = 0.95  # share of the positive examples that a precondition must let through

# Cost of a feature: lowest for those that explain, highest for those that name a place.
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
# Programs choose the mode of a model with frozen parts freely.
_FROZEN = "frozen"
# If only one value of these was seen, nothing is claimed about the other.
_SCOPES = ("grad_enabled", "training")
# The same in other programs: a program without frozen parameters shows nothing about freezing.
WIDE_SCOPES = (*_SCOPES, _FROZEN, "has_gradient", "has_step", "requires_grad")
# Its values have no meaning in other programs.
_PRIVATE = "model"
_CLASS = "module_class"


@dataclass(frozen=True, slots=True)
class LearnedPrecondition:
    """A precondition and its examples.

    Attributes:
        precondition: as learned.
        positive: number of examples that it lets through.
        excluded: number of counterexamples.
        candidates: number of conditions it was chosen from.
        is_restricted: whether it names programs.
    """

    precondition: Precondition
    positive: int
    excluded: int
    candidates: int = 1
    is_restricted: bool = False

    @property
    def conditions(self) -> int:
        """Number of conditions that were chosen; the one on the program was not."""
        chosen = {
            tuple(c for c in clause if c.feature != PROGRAM) for clause in self.precondition.clauses
        }
        return sum(len(clause) for clause in chosen)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A conjunction. rows: bit i is set if it holds in row i of the table."""

    conditions: tuple[Condition, ...]
    rows: int
    cost: int


Counts = Mapping[Features, tuple[int, int]]


def preconditions_by_scope(
    counts: Counts,
    min_programs: int | None,
    is_enough: Callable[[LearnedPrecondition], bool],
    contradicting: Collection[str] = (),
) -> list[LearnedPrecondition]:
    """Preconditions of a claim: for every program, then for the programs seen.

    Args:
        counts: of positive and negative examples, by context.
        min_programs: number of programs in which a claim must hold before it is made of every
            program; None for never.
        is_enough: whether a precondition has enough evidence. One with too little is returned only
            if there is no other.
        contradicting: programs that could have shown the claim, and did not.
    """
    by_program = _by_program(counts)
    if None in by_program:  # the program is not known
        learned = None if contradicting else learn(_sum_counts(by_program.values()))
        return [] if learned is None else [learned]
    found = []
    if min_programs is not None and not contradicting:
        wide = learn(_sum_counts(by_program.values()), is_wide=True)
        if wide is not None and _count_programs(by_program, wide.precondition) >= min_programs:
            found.append(wide)
    own = {
        name: learn(some)
        for name, some in sorted(by_program.items(), key=_name)
        if not any(alike(name or "", other) for other in contradicting)
    }
    known = {name: learned for name, learned in own.items() if learned is not None}
    enough = {
        name: learned for name, learned in known.items() if is_enough(_restricted({name: learned}))
    }
    if enough or (known and not found):
        found.append(_restricted(enough or known))
    return found


def _name(item: tuple[str | None, Any]) -> str:
    return item[0] or ""


def _by_program(counts: Counts) -> dict[str | None, dict[Features, tuple[int, int]]]:
    """The counts of each program. It has the name that says most, of those of its runs."""
    names: dict[str, str] = {}
    tables: dict[str | None, list[Counts]] = defaultdict(list)
    for features, count in counts.items():
        program = next((str(value) for name, value in features if name == PROGRAM), None)
        rest = tuple(pair for pair in features if pair[0] != PROGRAM)
        core = None if program is None else core_of(program)
        if core is not None and program is not None:
            names[core] = max(names.get(core, program), program, key=lambda n: (len(n), n))
        tables[core].append({rest: count})
    return {names.get(core or "", core): _sum_counts(some) for core, some in tables.items()}


def _sum_counts(tables: Iterable[Counts]) -> dict[Features, tuple[int, int]]:
    found: dict[Features, tuple[int, int]] = {}
    for table in tables:
        for features, (positive, negative) in table.items():
            mine = found.get(features, (0, 0))
            found[features] = (mine[0] + positive, mine[1] + negative)
    return found


def _count_programs(by_program: Mapping[str | None, Counts], precondition: Precondition) -> int:
    """Number of programs with an example that the precondition lets through."""
    return sum(
        any(count[0] and precondition.holds(dict(features)) for features, count in table.items())
        for table in by_program.values()
    )


def _restricted(found: Mapping[str | None, LearnedPrecondition]) -> LearnedPrecondition:
    """The union of what was learned in several programs. The weakest evidence counts."""
    clauses = tuple(
        (Condition(feature=PROGRAM, op="==", value=name), *clause)
        for name, learned in found.items()
        for clause in learned.precondition.clauses or ((),)
    )
    weakest = min(found.values(), key=lambda learned: learned.positive)
    return LearnedPrecondition(
        Precondition(clauses=clauses),
        weakest.positive,
        sum(learned.excluded for learned in found.values()),
        max(learned.candidates for learned in found.values()),
        is_restricted=True,
    )


def learn(counts: Counts, *, is_wide: bool = False) -> LearnedPrecondition | None:
    """The simplest precondition that excludes all negative examples; None if there is none.

    is_wide: it must make sense in other programs, and is limited to the values seen.
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
        return LearnedPrecondition(Precondition(clauses=(scope,) if scope else ()), positive, 0)
    singles = sorted(_singles(table, is_wide), key=lambda c: (c.cost, repr(c.conditions)))
    bad = _bits(row[2] > 0 for row in table)
    # First one that lets all positive examples through, whatever their numbers in this sample.
    found = (_search(table, singles, bad, share * positive) for share in (1.0, _COVER))
    chosen = next(
        # It has fewer conditions than the table has rows.
        (c for c in found if c and sum(len(clause.conditions) for clause in c) < len(table)),
        None,
    )
    if chosen is None:
        return None
    covered = 0
    for clause in chosen:
        covered |= clause.rows
    inside = [row for i, row in enumerate(table) if covered >> i & 1]
    scope = _scope(inside, is_wide)
    clauses = []
    for conditions in (clause.conditions for clause in chosen):
        known = {condition.feature for condition in conditions}
        clauses.append((*conditions, *(one for one in scope if one.feature not in known)))
    held = sum(row[1] for row in inside)
    return LearnedPrecondition(Precondition(clauses=tuple(clauses)), held, negative, len(singles))


def _search(
    table: Sequence[tuple[dict[str, Scalar], int, int]],
    singles: Sequence[_Candidate],
    bad: int,
    wanted: float,
) -> tuple[_Candidate, ...] | None:
    def cover(rows: int) -> int:
        return sum(row[1] for i, row in enumerate(table) if rows >> i & 1)

    # A conjunction lets through no more than any of its parts.
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
            if is_wide and feature == _CLASS and is_user_api(str(condition.value)):
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


def _bits(flags: Iterable[bool]) -> int:
    bits = 0
    for i, flag in enumerate(flags):
        bits |= bool(flag) << i
    return bits


_CONDITION_TEXTS: dict[tuple[str, Scalar], str] = {
    ("frozen", False): "no parameter of the model is frozen",
    ("frozen", True): "a parameter of the model is frozen",
    ("has_step", False): "no optimizer steps",
    ("has_step", True): "an optimizer steps",
}
_OPERATORS = {"==": "is", "!=": "is not", ">": "is above", "<=": "is at most"}


def sentence(text: str, precondition: Precondition) -> str:
    """Join both: ``Every parameter changes, if requires_grad is true.`` is an example."""
    programs: dict[tuple[Condition, ...], list[str]] = {}
    for clause in precondition.clauses:
        rest = tuple(c for c in clause if c.feature != PROGRAM)
        names = programs.setdefault(rest, [])
        names += [file_of(str(c.value)) for c in clause if c.feature == PROGRAM]
    if len(programs) == 1:
        ((rest, names),) = programs.items()
        names = list(dict.fromkeys(names))
        if not text.startswith(f"In {listed(names)}, " if names else "In "):
            text = of_programs(names, text)
        clauses = _clause(rest)
    else:
        clauses = " or ".join(
            " and ".join(
                filter(
                    None,
                    (_clause(rest), f"in {listed(list(dict.fromkeys(names)))}" if names else ""),
                )
            )
            for rest, names in programs.items()
        )
    return f"{text}, if {clauses}." if clauses else f"{text}."


def _clause(conditions: Sequence[Condition]) -> str:
    return " and ".join(_condition(condition) for condition in conditions)


def _condition(condition: Condition) -> str:
    value = condition.value
    if condition.op == "==" and (condition.feature, value) in _CONDITION_TEXTS:
        return _CONDITION_TEXTS[condition.feature, value]
    shown = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"{condition.feature} {_OPERATORS[condition.op]} {shown}"
