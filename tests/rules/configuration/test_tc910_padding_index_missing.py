"""TC910: embeddings without a padding index."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import embedding, told
from traincheck.schema.findings import Verdict

TOKENS = {"pad_token_id": 0, "vocab_size": 500}
BROKEN = told({"words": embedding(500, 8)}, tokens=TOKENS)


def test_fires_without_padding_idx() -> None:
    assert fires("TC910", BROKEN).subject.module == "Net.words"


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [
        (embedding(500, 8, padding_idx=0), TOKENS),
        (embedding(64, 8), TOKENS),
        (embedding(500, 8), {"vocab_size": 500}),
        (embedding(50, 8), {"pad_token_id": 0, "vocab_size": 50}),
    ],
    ids=str,
)
def test_quiet_on_others(layer: dict, tokens: dict) -> None:
    found = quiet("TC910", told({"words": layer}, tokens=tokens))
    assert found in (Verdict.HELD, Verdict.NOT_TRIGGERED)
