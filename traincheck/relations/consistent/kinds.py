"""Kinds of consistency: of variables, calls, and exchanged tensors."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.facts.distributed.collectives import Meeting
from traincheck.schema.torch_api import Families

MOMENTS = {"parameter": "step", "buffer": "forward", "optimizer_state": "step"}
WRAPPED, CALLS = "wrapped", "calls"
SHAPES, RECEIVED = "shapes", "received"
NORMS = "norms"  # of gradients, when they are clipped
_CLOSE = 1e-4  # relative: norms may be summed in another order
COUNTED = {"backward": Families.BACKWARD, "optimizer_step": Families.OPTIMIZER_STEP}


def are_close(norms: Mapping[int, float]) -> bool:
    """Whether norms differ by rounding only."""
    low, high = min(norms.values()), max(norms.values())
    return high - low <= _CLOSE * abs(high)


def exchanged(met: Meeting) -> dict[str, list[str] | None]:
    """The values that two ranks gave and got in one collective call, by kind of claim."""
    if not met.is_same:
        return {}
    return {SHAPES: met.pair.shapes, RECEIVED: met.pair.contents}
