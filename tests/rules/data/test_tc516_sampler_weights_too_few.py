"""TC516: weights of classes where those of samples are asked for."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

WEIGHTED = "torch.utils.data.sampler.WeightedRandomSampler"


def run(**fields: Any) -> list[Event]:
    trace = net()
    for _ in range(3):
        trace.begin_step().batch(**fields).zero_grad().forward().backward().optimizer_step()
    return trace.build()


BROKEN = run(sampler=WEIGHTED, weights=10, dataset_size=1797)


def test_fires_on_one_weight_for_each_class(golden: Golden) -> None:
    finding = fires("TC516", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "error")
    golden(finding)
    assert mentions(finding, 10, 1797)


def test_quiet_on_one_weight_for_each_sample() -> None:
    assert quiet("TC516", run(sampler=WEIGHTED, weights=1797, dataset_size=1797)) is Verdict.HELD
    assert quiet("TC516", run()) is Verdict.NOT_TRIGGERED
