"""TC802: buffers of positions in half precision."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def run(buffer: str, dtype: str) -> list[Event]:
    trace = TraceBuilder().process()
    trace.model("Net", MLP, buffers={buffer: "__main__.Rotary"}).optimizer()
    return [
        e.replace(summary=e.summary.replace(dtype=dtype))
        if e.kind == "state" and e.role == "buffer"
        else e
        for e in trace.steps(2).build()
    ]


BROKEN = run("rope.inv_freq", "bfloat16")


@pytest.mark.parametrize(
    "buffer", ["rope.inv_freq", "rotary_emb.inv_freq", "pos.timesteps", "inv_freqs", "positions"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fires_on_names_of_positions(buffer: str, dtype: str) -> None:
    finding = fires("TC802", run(buffer, dtype))
    assert finding.variables == (f"Net.{buffer}",)
    assert finding.first_step == 0
    assert mentions(finding, dtype)


def test_quiet_on_float32_and_on_other_buffers() -> None:
    assert quiet("TC802", run("rope.inv_freq", "float32")) is Verdict.HELD
    assert quiet("TC802", run("pos.position_ids", "int64")) is Verdict.HELD
    assert quiet("TC802", run("bn.running_mean", "bfloat16")) is Verdict.NOT_TRIGGERED
