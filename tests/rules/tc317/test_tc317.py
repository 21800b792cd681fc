"""TC317: a mask that is True where padding is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.rules.attending import IDS, attend, attending
from tests.rules.losses import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

PADDED = {"padding": 0.25, "left_padded": False}
SHAPE = (4, 1, 1, 16)

BROKEN = attending(PADDED, attn_mask=tensor(SHAPE, "bool", zeros=0.75))


def test_fires_when_it_leaves_the_tokens_out() -> None:
    finding = fires("TC317", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    assert "75.0%" in finding.observed
    assert "25.0% are padding" in finding.observed


@pytest.mark.parametrize(
    "mask",
    [
        tensor(SHAPE, "bool", zeros=0.25),
        tensor((4, 1, 16, 16), "bool", zeros=0.6),  # causal as well
    ],
)
def test_quiet_on_masks_of_tokens(mask: dict[str, Any]) -> None:
    assert quiet("TC317", attending(PADDED, attn_mask=mask)) is Verdict.HELD


def of_queries(*shares: tuple[float, float]) -> list[Event]:
    """Steps with masks of all pairs of positions. shares: of padding, and left out."""
    trace = net()
    for padding, zeros in shares:
        mask = tensor((4, 1, 16, 16), "bool", zeros=zeros)
        heads = dict.fromkeys(("query", "key", "value"), tensor((4, 2, 16, 8)))
        tokens = {"padding": padding, "left_padded": False}
        attend(trace, tokens, {**heads, "attn_mask": mask}, {"attention_mask": IDS})
    return trace.build()


def test_a_mask_of_pairs_is_inverted_where_several_batches_agree() -> None:
    finding = fires("TC317", of_queries((0.3, 0.7), (0.25, 0.75), (0.2, 0.8), (0.1, 0.9)))
    assert (finding.first_step, finding.last_step) == (2, 3)


def test_quiet_on_a_causal_mask_that_leaves_as_much_out_by_chance() -> None:
    by_chance = of_queries((0.3, 0.6), (0.25, 0.75), (0.2, 0.8), (0.15, 0.55), (0.1, 0.9))
    assert quiet("TC317", by_chance) is Verdict.HELD
    assert quiet("TC317", of_queries(*4 * [(0.25, 0.75)])) is Verdict.HELD


@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        ({"padding": 0.5}, tensor(SHAPE, "bool", zeros=0.5)),
        ({"padding": 0.0}, tensor(SHAPE, "bool", zeros=1.0)),
        (PADDED, tensor(SHAPE, "bool")),
        (PADDED, tensor((1, 1, 16, 16), "bool", zeros=0.75)),  # not of this batch
        (PADDED, None),
    ],
)
def test_says_nothing_when_it_cannot_tell(tokens: dict[str, Any], mask: Any) -> None:
    assert quiet("TC317", attending(tokens, attn_mask=mask)) is Verdict.NOT_TRIGGERED
