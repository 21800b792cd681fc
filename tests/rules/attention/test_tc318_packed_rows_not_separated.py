"""TC318: packed sequences that attend to each other."""

from __future__ import annotations

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.attending import attending
from tests.rules.loss_runs import tensor
from traincheck.schema.findings import Verdict

PACKED = {"resets": 3}

BROKEN = attending(PACKED, is_causal=True)


@pytest.mark.parametrize("is_causal", [True, False])
def test_fires_without_a_mask(is_causal: bool, golden: Golden) -> None:
    finding = fires("TC318", attending(PACKED, is_causal=is_causal))
    assert (finding.first_step, finding.last_step) == (0, 1)
    golden(finding)
    assert mentions(finding, 3)


def test_quiet_with_a_mask_and_without_packing() -> None:
    mask = tensor((4, 1, 16, 16), "bool")
    assert quiet("TC318", attending(PACKED, attn_mask=mask)) is Verdict.HELD
    assert quiet("TC318", attending({"resets": 0}, is_causal=True)) is Verdict.NOT_TRIGGERED
