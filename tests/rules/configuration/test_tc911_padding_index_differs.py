"""TC911: two padding ids."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.rules.models import embedding, told
from traincheck.schema.findings import Verdict

TOKENS = {"pad_token_id": 1, "vocab_size": 500}
BROKEN = told({"words": embedding(500, 8, padding_idx=0)}, tokens=TOKENS)


def test_fires_on_two_opinions() -> None:
    finding = fires("TC911", BROKEN)
    assert (finding.subject.module, finding.severity) == ("Net.words", "warning")


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [
        (embedding(500, 8, padding_idx=1), TOKENS),
        (embedding(64, 8, padding_idx=0), TOKENS),
        (embedding(500, 8), TOKENS),
        (embedding(500, 8, padding_idx=0), {"vocab_size": 500}),
    ],
    ids=str,
)
def test_quiet_on_others(layer: dict, tokens: dict) -> None:
    found = quiet("TC911", told({"words": layer}, tokens=tokens))
    assert found in (Verdict.HELD, Verdict.NOT_TRIGGERED)
