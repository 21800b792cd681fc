"""TC914: batch norms over few samples."""

from __future__ import annotations

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.findings import Verdict


def given(*shape: int, training: bool = True, times: int = 3) -> list:
    trace = net()
    for _ in range(times):
        tensor = {"dtype": "float32", "shape": list(shape), "device": "cpu"}
        args = {"input": tensor, "training": training}
        trace.begin_step().call("torch.nn.functional.batch_norm", args=args, module="Net.bn")
    return trace.build()


BROKEN = given(4, 16)


def test_fires_on_four_samples(golden: Golden) -> None:
    finding = fires("TC914", BROKEN)
    assert finding.subject.module == "Net.bn"
    golden(finding)
    assert mentions(finding, "Net.bn", 4)


@pytest.mark.parametrize(
    "events",
    [
        given(8, 16),
        given(4, 16, training=False),
        given(2, 16, 8, 8),
        given(4, 16, times=2),
    ],
    ids=["enough", "evaluation", "many positions", "a last batch"],
)
def test_quiet_on_others(events: list) -> None:
    assert quiet("TC914", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)
