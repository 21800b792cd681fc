from __future__ import annotations

import pytest

from traincheck.schema.words import counted, joined, listed


@pytest.mark.parametrize(
    ("number", "word", "text"),
    [
        (0, "step", "0 steps"),
        (1, "step", "1 step"),
        (2_000, "step", "2,000 steps"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (2, "class", "2 classes"),
        (3, "epoch", "3 epochs"),
    ],
)
def test_a_number_of_things(number: int, word: str, text: str) -> None:
    assert counted(number, word) == text


def test_names_are_listed_in_full() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_names_are_joined_up_to_a_limit() -> None:
    assert joined([], 2) == ""
    assert joined(["a", "b"], 2) == "a, b"
    assert joined(["a", "b", "c", "d"], 2) == "a, b and 2 more"
