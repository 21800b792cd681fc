"""TC335: cross entropy of labels that do not exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import loss_run, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

CE = "cross_entropy"


def several(shape: tuple[int, ...] = (32, 6), **stats: float) -> dict[str, Any]:
    return tensor(shape, **{"min": 0, "max": 1, "row_sum_min": 0, "row_sum_max": 4, **stats})


def run(api: str = CE, count: int = 4, target: Any = None, **args: Any) -> list[Event]:
    return loss_run(api, count, None, target=target or several(), **args)


BROKEN = run()


def test_fires_once_at_the_first_loss(golden: Golden) -> None:
    finding = fires("TC335", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (0, 1, "warning")
    golden(finding)
    assert mentions(finding, 4, "cross_entropy")


@pytest.mark.parametrize(
    "events",
    [
        run(count=2),
        run("binary_cross_entropy_with_logits"),
        run(reduction="none"),  # divided afterwards
        run(target=several(row_sum_max=1.001)),
        run(target=several(max=3)),  # counts
        run(target=several(min=-1)),
        run(target=several((32, 32))),  # pairs
        run(target=several((32, 6, 8))),  # sums of the last dim are not those of classes
        run(target=tensor((32,), "int64", min=0, max=5)),
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC335", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_where_the_input_is_the_target() -> None:
    trace, given = net(), {**several(), "fingerprint": "xxh3-128:1"}
    for _ in range(4):
        trace.begin_step().batch().zero_grad()
        trace.call(
            "__main__.Net.forward",
            family=Families.MODULE,
            module="Net",
            root=True,
            args={"0": given},
        )
        trace.call(f"torch.nn.functional.{CE}", args={"target": given, "reduction": "mean"})
        trace.backward().optimizer_step()
    assert quiet("TC335", trace.build()) is Verdict.HELD


def rows(kind: str) -> torch.Tensor:
    labels = torch.rand(16, 6)
    if kind == "several":
        return (labels > 0.5).float()
    if kind == "one":
        return F.one_hot(labels.argmax(1), 6).float()
    return labels.softmax(1)


@pytest.mark.parametrize("kind", ["several", "one", "soft"])
def test_recorded_runs(tmp_path: Path, kind: str) -> None:
    model = nn.Linear(8, 6)
    with recording(tmp_path / "run") as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 8)), rows(kind)).backward()
            optimizer.step()
    if kind == "several":
        assert fires("TC335", recorded.events).first_step == 0
    else:
        assert quiet("TC335", recorded.events) is Verdict.HELD
