"""Facts of functions of torch: in the class of a fault, and in the calm one of a healthy twin."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.checking import net
from traincheck.facts.book import facts_of
from traincheck.facts.operation_kinds import APART, ROWS, SIZES, Row
from traincheck.facts.table import KINDS
from traincheck.schema.facts import Fact
from traincheck.schema.observations.operations import OperationUse, OperationUses

LINE, OTHER = "/home/me/train.py:7", "/home/me/train.py:9"
LOSS = {
    "elements": 64.0, "gradient": 1.0, "gradient_of_target": 0.0, "ignored": 0.0, "equal": 0.0,
    "repeats": 0.0, "target_low": 0.0, "target_high": 4.0, "target_deviation": 1.0,
    "target_mean": 2.0, "prediction_deviation": 0.5, "prediction_mean": 2.1,
}  # fmt: skip
INPUT = {
    "value_low": -2.0, "value_high": 2.0, "value_mean": 0.1, "value_deviation": 1.0, "whole": 0.0,
    "rows_alike": 0.0, "repeats": 0.0,
}  # fmt: skip

# Numbers of a step of each kind: those of a healthy program, then of each other class
CASES: Mapping[str, tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]] = {
    "operators.softmax over one element": (
        {"over": 8, "sharp": 0, "even": 0},
        {"one element": {"over": 1, "sharp": 1, "even": 1}},
    ),
    "operators.weights of softmax": (
        {"over": 8, "sharp": 0.1, "even": 0.1},
        {
            "one takes all": {"over": 8, "sharp": 1, "even": 0},
            "even": {"over": 8, "sharp": 0, "even": 1},
        },
    ),
    "operators.reduction of one element": (
        {"over": 8, "of": 64, "mixes": 0},
        {"one element": {"over": 1, "of": 64, "mixes": 0}},
    ),
    "operators.rows of a batch": (
        {"over": 8, "of": 64, "mixes": 0},
        {"mixed": {"over": 8, "of": 64, "mixes": 1}},
    ),
    "operators.limits": (
        {"changed": 0.1}, {"nothing": {"changed": 0}, "everything": {"changed": 1}},
    ),
    "operators.rectifiers": ({"zero": 0.5}, {"none": {"zero": 0}, "all": {"zero": 1}}),
    "operators.masks": ({"hidden": 0.2}, {"nothing": {"hidden": 0}, "everything": {"hidden": 1}}),
    "operators.value of masked elements": (
        {"hidden": 0.2, "fill": -1e9},
        {
            "0": {"hidden": 0.2, "fill": 0},
            "near 0": {"hidden": 0.2, "fill": 1e-9},
            "another": {"hidden": 0.2, "fill": 3},
        },
    ),
    "operators.arguments near 0": ({"near": 0}, {"near 0": {"near": 0.1}}),
    "loss.target in an input": (
        {"feature": 0},
        {
            "a feature": {"feature": 1},
            "the same place": {"shift_0": 1, "shift_1": 0},
            "one place later": {"shift_0": 0, "shift_1": 1},
            "one place earlier": {"shift_0": 0, "shift_-1": 1},
            "two places later": {"shift_0": 0, "shift_2": 1},
        },
    ),
    "loss.ignored targets": (
        LOSS, {"a part": {**LOSS, "ignored": 0.4}, "nearly all": {**LOSS, "ignored": 0.95}},
    ),
    "loss.prediction and target": (LOSS, {"equal": {**LOSS, "equal": 1}}),
    "loss.target again": (LOSS, {"the same": {**LOSS, "repeats": 1}}),
    "loss.gradient of the target": (LOSS, {"yes": {**LOSS, "gradient_of_target": 1}}),
    "loss.values of the target": (LOSS, {"one value": {**LOSS, "target_high": 0}}),
    "operators.padding vector": (
        {"rows": 64, "highest": 60, "size_of_padding": 0},
        {"not zero": {"rows": 64, "highest": 60, "size_of_padding": 0.3}},
    ),
    "operators.rows of a table": (
        {"rows": 64, "highest": 60}, {"a small part": {"rows": 64, "highest": 3}},
    ),
    "operators.dropout": (
        {"rate": 0.1, "off": 0, "gradient": 1},
        {
            "off": {"rate": 0.1, "off": 1, "gradient": 0},
            "rate 0": {"rate": 0, "off": 0, "gradient": 1},
            "above a half": {"rate": 0.9, "off": 0, "gradient": 1},
            "off while it is trained through": {"rate": 0.1, "off": 1, "gradient": 1},
        },
    ),
    "operators.resized values": (
        {"whole": 1, "blends": 0}, {"whole numbers are blended": {"whole": 1, "blends": 1}},
    ),
    "operators.states of lstm": (
        {"equal": 0, "zero": 1, "one_state": 1},
        {
            "the results are equal": {"equal": 1},
            "the first states are equal": {"equal": 0, "zero": 0, "one_state": 1},
        },
    ),
    "operators.results of one value": (
        {"one_value": 0, "value": 1}, {"one value": {"one_value": 1, "value": 1}},
    ),
    "values.rows of an output": (INPUT, {"alike": {**INPUT, "rows_alike": 1}}),
    "values.rows of an input": (INPUT, {"alike": {**INPUT, "rows_alike": 1}}),
    "values.input again": (INPUT, {"the same": {**INPUT, "repeats": 1}}),
    "values.size of an input": (
        INPUT,
        {
            "beyond 50": {**INPUT, "value_high": 255},
            "beyond 1,000": {**INPUT, "value_low": -4000},
        },
    ),
}  # fmt: skip


def told(*uses: OperationUse, steps: int = 4) -> list[Fact]:
    run = net()
    for _ in range(steps):
        run.begin_step()
        run.mark(OperationUses.text, uses=[
            {"look": use.look, "function": use.function, "where": use.where, "calls": use.calls,
             "numbers": dict(use.numbers), "of": use.of}
            for use in uses
        ])  # fmt: skip
        run.end_step()
    return facts_of(run.build())


def use(row: Row, numbers: Mapping[str, float]) -> OperationUse:
    return OperationUse(row.looks[0], "function", LINE, 1, numbers, "x")


def of(kind: str, facts: list[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.kind == kind]


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
    sentence = KINDS.sentence(fact)
    assert "None" not in sentence
    if fact.looks:  # else one line stands for all of them
        assert (fact.count, fact.looks, fact.first_step, fact.where) == (4, 4, 0, LINE)
        assert sentence.endswith("in 4 of 4 steps")


@pytest.mark.parametrize(
    ("mean", "deviation", "seen_as"),
    [(0.1, 1.0, "alike"), (0.1, 80.0, "another scale"), (9.0, 1.0, "another scale")],
)
def test_inputs_of_two_lines(mean: float, deviation: float, seen_as: str) -> None:
    other = {**INPUT, "value_mean": mean, "value_deviation": deviation}
    uses = (
        OperationUse("input", "Net", LINE, 1, INPUT, "x"),
        OperationUse("input", "Net", OTHER, 1, other, "x"),
    )
    [fact] = of(APART.name, told(*uses))
    assert fact.seen_as == seen_as
    if seen_as != "alike":
        assert fact.where == OTHER
        assert "in train.py:7" in KINDS.sentence(fact)


@pytest.mark.parametrize(
    ("changed", "seen_as"),
    [
        ({}, "alike"),
        ({"target_deviation": 50.0}, "the target is far larger"),
        ({"prediction_deviation": 50.0}, "the prediction is far larger"),
        ({"target_mean": 40.0}, "their means are far apart"),
    ],
)
def test_sizes_of_prediction_and_target(changed: Mapping[str, float], seen_as: str) -> None:
    uses = OperationUse("loss", "mse_loss", LINE, 1, {**LOSS, **changed})
    [fact] = of(SIZES.name, told(uses))
    assert fact.seen_as == seen_as
    assert "None" not in KINDS.sentence(fact)


def test_classes_have_no_size() -> None:
    assert not of(SIZES.name, told(OperationUse("loss", "nll", LINE, 1, {**LOSS, "classes": 4.0})))
