"""TC316: a mask that does not reach attention."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import mentions
from tests.rules.attending import IDS, attending
from tests.rules.loss_runs import tensor
from traincheck.schema.findings import Verdict

PADDED = {"padding": 0.25, "left_padded": False}
LEFT = {"padding": 0.25, "left_padded": True}
MASK = tensor((4, 1, 1, 16), "bool")

BROKEN = attending(PADDED)


def test_fires_at_the_first_padded_batch() -> None:
    finding = fires("TC316", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    assert mentions(finding, "attention_mask", "25%")


def test_fires_on_a_mask_by_position() -> None:
    assert fires("TC316", attending(PADDED, {"0": IDS, "1": IDS})).subject.module == "Net"


def test_fires_on_causal_attention_behind_padding() -> None:
    assert fires("TC316", attending(LEFT, is_causal=True))


@pytest.mark.parametrize(
    ("tokens", "more"),
    [
        (PADDED, {"attn_mask": MASK}),
        (PADDED, {"is_causal": True}),
        (LEFT, {"attn_mask": MASK, "is_causal": True}),
    ],
)
def test_quiet_when_padding_is_hidden(tokens: dict[str, Any], more: dict[str, Any]) -> None:
    assert quiet("TC316", attending(tokens, **more)) is Verdict.HELD


@pytest.mark.parametrize(
    ("tokens", "more"),
    [
        ({"padding": 0.0}, {}),
        ({}, {}),
        (PADDED, {"args": {"0": IDS}}),  # the model is not given the mask
        (PADDED, {"keys": 7}),  # attention over something else
    ],
)
def test_says_nothing_without_mask_or_padding(tokens: dict[str, Any], more: dict[str, Any]) -> None:
    assert quiet("TC316", attending(tokens, **more)) is Verdict.NOT_TRIGGERED


def test_quiet_where_the_next_batch_is_fetched_before_this_one_is_used() -> None:
    """Two batches of one shape: the one without padding is given no mask."""
    events = attending({"padding": 0.0})
    batch = next(e for e in attending(PADDED) if e.kind == "batch")
    last = max(i for i, e in enumerate(events) if e.kind == "batch")
    assert quiet("TC316", [*events[: last + 1], batch, *events[last + 1 :]]) is not Verdict.VIOLATED
