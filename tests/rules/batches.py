"""Training steps over hand-made batches, for the rules about data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.builders import TraceBuilder
from tests.checking import net
from traincheck.schema.events import Event

SEQUENTIAL = "torch.utils.data.sampler.SequentialSampler"
DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"


def trained_on(
    batches: Iterable[Mapping[str, Any]], trace: TraceBuilder | None = None
) -> TraceBuilder:
    """A trace with one training step for each batch, given as fields of its event."""
    trace = net() if trace is None else trace
    for batch in batches:
        trace.begin_step().batch(**batch)
        trace.zero_grad().forward().backward().optimizer_step()
    return trace


def run_on(batches: Iterable[Mapping[str, Any]]) -> list[Event]:
    """The events of `trained_on`."""
    return trained_on(batches).build()


def leaf(content: str = "", shape: tuple[int, ...] = (4, 10), **more: Any) -> dict[str, Any]:
    """A tensor of a batch whose fingerprint is ``content``."""
    tensor = {"dtype": "float32", "shape": list(shape), "device": "cpu", **more}
    return {**tensor, "fingerprint": f"xxh3:{content}"} if content else tensor
