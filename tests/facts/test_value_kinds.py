"""More facts of functions of torch: in the class of a fault, and in the calm one of a twin."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.facts.test_operations import INPUT, LINE, of, told, use
from traincheck.facts.card import card_of
from traincheck.facts.operation_kinds import Row
from traincheck.facts.population import Population
from traincheck.facts.table import KINDS
from traincheck.facts.value_kinds import ROWS

VECTOR = {"elements": 64.0, "of_all_rows": 0.0, "size": 8.0, "square": 0.0, "outer": 0.0}
NORM = {"dims": 4.0, "dim": 3.0, "one": 1.0, "last": 1.0, "first": 0.0, "left": 2.0}
LABELS = {"binary": 1.0, "counted": 0.0, "first_counts": 1.0}

# Numbers of a step of each kind: those of a healthy program, then of each other class
CASES: Mapping[str, tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]] = {
    "operators.number of all rows": (
        VECTOR, {"of all rows": {**VECTOR, "of_all_rows": 0.5}},
    ),
    "operators.broadcast vector": (
        VECTOR,
        {"over a square": {**VECTOR, "square": 1}, "larger than both": {**VECTOR, "outer": 1}},
    ),
    "operators.dims of a norm": (
        NORM, {"a dim amid others": {**NORM, "dim": 1, "last": 0}},
    ),
    "operators.rows of a mask": (
        {"whole": 0.1, "part": 0.5}, {"whole rows": {"whole": 0.4, "part": 0}},
    ),
    "operators.limits of a dtype": (
        {"is_one": 0, "is_zero": 0},
        {
            "1 in the dtype": {"is_one": 1, "is_zero": 0, "below": 1e-6},
            "0 in the dtype": {"is_one": 0, "is_zero": 1, "limit": 1e-8},
        },
    ),
    "operators.table within a step": ({"written": 0}, {"written": {"written": 1}}),
    "values.values of an input": (INPUT, {"one value": {**INPUT, "value_high": -2.0}}),
    "loss.labels of padding": (
        LABELS,
        {"some count": {**LABELS, "counted": 0.625}, "all count": {**LABELS, "counted": 1}},
    ),
    "loss.first label of a row": (LABELS, {"in some rows": {**LABELS, "first_counts": 0.25}}),
}  # fmt: skip


def test_each_class_has_a_case() -> None:
    cases = {name: {*others, "calm"} for name, (_, others) in CASES.items()}
    assert cases == {r.kind.name: {*list(r.kind.classes)[1:], "calm"} for r in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind.name)
def test_a_healthy_line_is_of_the_calm_class(row: Row) -> None:
    [fact] = of(row.kind.name, told(use(row, CASES[row.kind.name][0])))
    assert fact.seen_as == next(iter(row.kind.classes))
    assert KINDS.sentence(fact).endswith("in 1 line")


@pytest.mark.parametrize(
    ("row", "seen_as"),
    [(row, seen_as) for row in ROWS for seen_as in CASES[row.kind.name][1]],
    ids=lambda one: one if isinstance(one, str) else one.kind.name,
)
def test_another_line_is_of_its_class(row: Row, seen_as: str) -> None:
    [fact] = of(row.kind.name, told(use(row, CASES[row.kind.name][1][seen_as])))
    assert fact.seen_as == seen_as
    assert (fact.count, fact.looks, fact.first_step, fact.where) == (4, 4, 0, LINE)
    assert KINDS.sentence(fact).endswith("in 4 of 4 steps")


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("operators.number of all rows", {"size": 8.0, "square": 0.0, "outer": 0.0}),
        ("operators.dims of a norm", {**NORM, "first": 1.0}),
        ("operators.rows of a mask", {"whole": 0.0, "part": 0.0}),
        ("operators.table within a step", {}),
        ("loss.labels of padding", {**LABELS, "binary": 0.0}),
        ("loss.labels of padding", {"binary": 1.0, "first_counts": 1.0}),
        ("loss.first label of a row", {**LABELS, "binary": 0.5}),
    ],
)
def test_a_line_that_cannot_show_a_kind_tells_nothing(
    kind: str, numbers: Mapping[str, float]
) -> None:
    [row] = [row for row in ROWS if row.kind.name == kind]
    assert not of(kind, told(use(row, numbers)))


def test_a_share_is_told_in_percent() -> None:
    [row] = [row for row in ROWS if row.kind.name == "loss.labels of padding"]
    [fact] = of(row.kind.name, told(use(row, CASES[row.kind.name][1]["some count"])))
    assert KINDS.sentence(fact).startswith("62.5 % of the labels count")


@pytest.mark.parametrize(("seen_as", "rarity"), [("calm", 1.0), ("whole rows", 0.035)])
def test_the_calm_class_of_a_kind_that_nobody_counted_is_usual(seen_as: str, rarity: float) -> None:
    [row] = [row for row in ROWS if row.kind.name == "operators.rows of a mask"]
    calm, others = CASES[row.kind.name]
    facts = of(row.kind.name, told(use(row, calm if seen_as == "calm" else others[seen_as])))
    [line] = card_of(facts, Population(200, {"loss.again": 9}, {})).lines
    assert line.rarity == pytest.approx(rarity, rel=0.02)
    assert not line.is_unusual
