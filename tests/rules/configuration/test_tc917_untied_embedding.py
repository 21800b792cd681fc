"""TC917: an embedding and a head of one shape."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import embedding, linear, told
from traincheck.schema.findings import Verdict

BROKEN = told({"words": embedding(2000, 8, storage=1), "head": linear(8, 2000, storage=2)})


def test_fires_on_two_matrices() -> None:
    assert fires("TC917", BROKEN).subject.module == "Net.words"


@pytest.mark.parametrize(
    ("rows", "storage", "tokens"),
    [(2000, 1, {}), (500, 2, {}), (2000, 2, {"tie_word_embeddings": 0})],
)
def test_quiet_on_others(rows: int, storage: int, tokens: dict) -> None:
    layers = {"words": embedding(rows, 8, storage=1), "head": linear(8, rows, storage=storage)}
    assert quiet("TC917", told(layers, tokens=tokens)) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
