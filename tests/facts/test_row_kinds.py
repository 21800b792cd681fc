"""Facts of rows that calls get: in the class of a fault, and in the calm one of a healthy twin."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.checking import net
from traincheck.facts.book import facts_of
from traincheck.facts.row_kinds import PICKED, ROWS, Row
from traincheck.facts.table import KINDS
from traincheck.schema.facts import Fact
from traincheck.schema.observations.operations import OperationUse, OperationUses

LINE, OTHER = "/home/me/train.py:7", "/home/me/train.py:9"
TARGETS = {"alone": 0.0, "rows": 64.0, "agree": 0.8, "chance": 0.1}
IDS = {
    "drawn": 200.0, "distinct": 40.0, "other_drawn": 200.0, "other_distinct": 40.0,
    "only_here": 0.1,
}  # fmt: skip

# Numbers of a step of each kind: those of a healthy program, then of each other class
CASES: Mapping[str, tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]] = {
    "operators.rows that are written": (
        {"rows": 640, "highest": 600}, {"a part": {"rows": 640, "highest": 19}},
    ),
    "operators.numbers of rows": (
        {"sorted": 0, "changes": 20}, {"sorted": {"sorted": 1, "changes": 20}},
    ),
    "loss.two targets of a batch": (TARGETS, {"as by chance": {**TARGETS, "agree": 0.12}}),
    "values.equal rows of an input": (
        {"groups": 0, "neighbours": 0},
        {
            "neighbours": {"groups": 1, "neighbours": 1},
            "apart": {"groups": 1, "neighbours": 0},
        },
    ),
    "values.ids of two lines": (IDS, {"never in the other": {**IDS, "only_here": 0.9}}),
    "rows.exchanged ids": (
        {"exchanged": 0, "equal": 0, "rows": 64},
        {"in training": {"exchanged": 0.2, "equal": 0, "rows": 64}},
    ),
}  # fmt: skip
# Numbers that show no class: a small table, a constant, one target alone, an unknown rest of ids
NOTHING = {
    "operators.rows that are written": {"rows": 8, "highest": 1},
    "operators.numbers of rows": {"sorted": 1, "changes": 0},
    "loss.two targets of a batch": {"alone": 1},
    "values.ids of two lines": {**IDS, "other_drawn": 60, "only_here": 0.9},
}


def told(*uses: OperationUse, steps: int = 4) -> list[Fact]:
    run = net()
    for _ in range(steps):
        run.step()
        run.mark(OperationUses.text, **OperationUses(uses).data())
    return facts_of(run.build())


def of(kind: str, facts: list[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.kind == kind]


def use(row: Row, numbers: Mapping[str, float]) -> OperationUse:
    return OperationUse(row.looks[0], "scatter", LINE, 1, numbers, "ids")


def test_each_class_has_a_case() -> None:
    kinds = {row.kind.name: [*row.kind.classes] for row in ROWS}
    assert {kind: [next(iter(kinds[kind])), *rest] for kind, (_, rest) in CASES.items()} == kinds


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind.name)
def test_a_fact_is_of_its_class(row: Row) -> None:
    calm, others = CASES[row.kind.name]
    [fact] = of(row.kind.name, told(use(row, calm)))
    assert (fact.seen_as, fact.of) == (next(iter(row.kind.classes)), "")
    for seen_as, numbers in others.items():
        [fact] = of(row.kind.name, told(use(row, numbers)))
        assert (fact.seen_as, fact.where, fact.count) == (seen_as, LINE, 4)
        assert "None" not in KINDS.sentence(fact)


@pytest.mark.parametrize("kind", NOTHING)
def test_numbers_that_tell_nothing_are_no_fact(kind: str) -> None:
    [row] = [row for row in ROWS if row.kind.name == kind]
    assert not of(kind, told(use(row, NOTHING[kind])))


def loss(elements: float, gradient: float = 1.0) -> OperationUse:
    numbers = {"elements": elements, "gradient": gradient, "gradient_of_target": 0.0}
    return OperationUse("loss", "cross_entropy", LINE, 1, numbers)


PICK = OperationUse("picked rows", "__getitem__", OTHER, 1, {"rows": 150.0, "share": 0.6})
WHOLE = OperationUse("picked rows", "__getitem__", OTHER, 1, {"rows": 150.0, "share": 1.0})


@pytest.mark.parametrize(
    ("uses", "seen_as"),
    [
        ([loss(150)], "none"),
        ([loss(150), WHOLE], "none"),
        ([loss(40), PICK], "a part"),
        ([loss(150, gradient=0.0), PICK], "a part"),  # a loss of an evaluation
        ([loss(150), PICK], "all"),
    ],
)
def test_rows_that_an_evaluation_picks(uses: list[OperationUse], seen_as: str) -> None:
    [fact] = of(PICKED.name, told(*uses))
    assert fact.seen_as == seen_as
    if seen_as == "all":
        assert "a mask picks 0.6 in an evaluation, in train.py:9" in KINDS.sentence(fact)
