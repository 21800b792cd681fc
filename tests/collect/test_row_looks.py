"""Numbers of rows, of calls with a fault in their rows and of healthy ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from traincheck.collect.tensors.row_looks import Key, RowLooks
from traincheck.collect.trace_writer.operands import second_operand

Found = dict[str, list[tuple[Key, dict[str, float]]]]


class Book:
    """Enters the numbers of all calls by their look."""

    def __init__(self) -> None:
        self.found: Found = {}
        self.looks = RowLooks(self.add)

    def add(self, key: Key, read: Callable[[], Any]) -> None:
        numbers = read()
        if numbers is not None:
            values = {name: float(one) for name, one in numbers.items()}
            self.found.setdefault(key[0], []).append((key, values))

    def called(self, name: str, *args: Any, evaluates: bool = False, **kwargs: Any) -> Book:
        self.looks.called(name, args, kwargs, "train.py:7", lambda: "sizes", evaluates=evaluates)
        return self

    def given(self, line: str = "train.py:7", evaluates: bool = False, **inputs: Any) -> Book:
        self.looks.given("Net", line, inputs, evaluates=evaluates)
        return self

    def last(self, look: str) -> dict[str, float]:
        return self.found[look][-1][1]


@pytest.mark.parametrize("highest", [19, 639])
def test_the_highest_row_that_is_written(highest: int) -> None:
    index = torch.arange(20) * highest // 19
    book = Book().called("index_add", torch.zeros(640, 3), 0, index, torch.ones(20, 3))
    assert book.last("written rows") == {"rows": 640, "highest": highest}


@pytest.mark.parametrize(
    ("order", "is_sorted"), [([9, 7, 7, 5, 4, 3, 2, 1], 1), ([7, 9, 5, 1, 4, 3, 2, 7], 0)]
)
def test_numbers_that_rows_are_divided_by(order: list[int], is_sorted: int) -> None:
    rows, numbers = torch.ones(8, 3, requires_grad=True), torch.tensor(order).unsqueeze(1)
    book = Book().called("div", rows, numbers)
    assert book.last("number of rows")["sorted"] == is_sorted
    assert book.found["number of rows"][0][0][3] == "sizes"
    # One number for all, or a divisor for each column
    assert not Book().called("div", rows, torch.tensor(3.0)).found
    assert not Book().called("div", rows, torch.arange(1.0, 4.0)).found


@pytest.mark.parametrize("is_other", [False, True])
def test_two_targets_of_a_batch(is_other: bool) -> None:
    labels = torch.arange(40) % 4
    soft = torch.nn.functional.one_hot(labels.flip(0) if is_other else labels, 4).float()
    logits = torch.zeros(40, 4)
    book = Book().called("kl_div", logits, soft).called("cross_entropy", logits, labels)
    found = book.last("two targets")
    assert found["agree"] == (0 if is_other else 1)
    assert found["chance"] == pytest.approx(0.25)
    book.looks.end_step()
    assert book.called("cross_entropy", logits, labels).last("two targets") == {"alone": 1}


def test_groups_of_equal_rows() -> None:
    rows = torch.arange(12.0).view(4, 3)
    by_side, apart = rows.repeat_interleave(3, 0), rows.repeat(3, 1)
    assert Book().given(x=by_side).last("equal rows") == {"groups": 1, "neighbours": 1}
    assert Book().given(x=apart).last("equal rows") == {"groups": 1, "neighbours": 0}
    for usual in (torch.arange(36.0).view(12, 3), torch.ones(12, 3)):
        assert Book().given(x=usual).last("equal rows") == {"groups": 0, "neighbours": 0}


@pytest.mark.parametrize(("known", "only_here"), [(True, 0), (False, 1)])
def test_ids_that_another_line_never_has(known: bool, only_here: float) -> None:
    book, ids = Book(), torch.arange(30)
    for _ in range(4):
        book.given("train.py:7", items=ids)
    book.given("train.py:8", items=ids if known else ids + 100)
    assert book.last("ids of a line") == {
        "drawn": 30, "distinct": 30, "other_drawn": 120, "other_distinct": 30,
        "only_here": only_here,
    }  # fmt: skip


@pytest.mark.parametrize(("is_turned", "share"), [(True, 1), (False, 0)])
def test_pairs_that_are_trained_on_with_their_ids_exchanged(is_turned: bool, share: int) -> None:
    one, other = torch.arange(20), torch.arange(20) + 50
    book = Book().given(u=one, v=other)
    assert "pairs of ids" not in book.found
    book.given(evaluates=True, u=other if is_turned else one + 7, v=one if is_turned else other)
    assert book.last("pairs of ids") == {"exchanged": share, "equal": 0, "rows": 20}


def test_rows_that_a_mask_picks_in_an_evaluation() -> None:
    mask = torch.arange(10) < 4
    book = Book().called("__getitem__", torch.ones(10, 2), mask, evaluates=True)
    assert book.last("picked rows") == {"rows": 10, "share": pytest.approx(0.4)}
    assert not Book().called("__getitem__", torch.ones(10, 2), mask).found
    assert not Book().called("__getitem__", torch.ones(10), slice(2), evaluates=True).found


def test_sets_of_ids_may_begin_in_inference_mode() -> None:
    book, ids = Book(), torch.arange(30)
    with torch.inference_mode():
        book.given(items=ids.clone())
    assert book.given(items=ids).last("ids of a line")["distinct"] == 30


class Sees:
    """Its operators tell the name of their second operand."""

    def __truediv__(self, other: Any) -> str:
        return second_operand(sys._getframe(1))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="lines have no places of operations")
def test_the_name_of_an_operand_is_that_of_the_program() -> None:
    total, sizes, parts = Sees(), torch.ones(3), {"a": torch.ones(3)}
    assert total / sizes == "sizes"
    assert total / sizes.view(1, 3) == "sizes"
    assert total / parts["a"] == "parts"
    assert total / Book.found_by.a.t() == "Book.found_by.a"
    assert total / 3.0 == ""
    assert second_operand(None) == ""


Book.found_by = type("Found", (), {"a": torch.ones(3)})  # type: ignore[attr-defined]
