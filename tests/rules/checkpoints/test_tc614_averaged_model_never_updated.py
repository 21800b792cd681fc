"""TC614: an average of weights that is never updated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.models import AuxiliaryEval

AVERAGES = (
    "torch.optim.swa_utils.AveragedModel", "timm.utils.model_ema.ModelEmaV3", "ema_pytorch.EMA",
    "__main__.EMA", "mine.MovingAverageModel", "mine.EmaModel",
)  # fmt: skip
OTHERS = ("__main__.Net", "__main__.Emanuel", "mine.Teacher", "mine.Swan")


def evaluated(
    *weights: str, cls: str = AVERAGES[0], apart: int = 25, model: str = "Copy"
) -> list[Event]:
    """An evaluation with each of these weights, so many steps after the one before."""
    trace = net()
    for content in weights:
        trace.steps(apart)
        trace.begin_step().mark(AuxiliaryEval.text, model=model, weights=content, **{"class": cls})
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


BROKEN = evaluated("a", "a", "a")


@pytest.mark.parametrize("cls", AVERAGES)
def test_fires_at_the_third_evaluation(cls: str) -> None:
    finding = fires("TC614", evaluated("a", "a", "a", "a", cls=cls))
    assert (finding.first_step, finding.subject.module, finding.violations) == (77, "Copy", 1)


def test_fires_on_a_part_of_an_average() -> None:
    """A class with a custom ``__call__``."""
    found = evaluated("a", "a", "a", cls="torch.nn.Linear", model="EMA#2.ema_model")
    assert fires("TC614", found).subject.module == "EMA#2.ema_model"


@pytest.mark.parametrize("cls", OTHERS)
def test_quiet_on_other_classes(cls: str) -> None:
    assert quiet("TC614", evaluated("a", "a", "a", cls=cls)) is Verdict.NOT_TRIGGERED


def test_quiet_where_it_changes_or_has_not_been_there_for_long() -> None:
    assert quiet("TC614", evaluated("a", "b", "b", "b", "b")) is Verdict.HELD
    assert quiet("TC614", evaluated("a", "a")) is Verdict.HELD
    assert quiet("TC614", evaluated("a", "a", "a", apart=9)) is Verdict.HELD


@pytest.mark.parametrize("updates", [True, False])
def test_an_average_of_torch(tmp_path: Path, updates: bool) -> None:
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 2)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(90):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            if updates:
                average.update_parameters(model)
            if step % 20 == 19:
                average.eval()
                with torch.no_grad():
                    average(torch.randn(8, 4))
    if updates:
        assert quiet("TC614", run.events) is Verdict.HELD
    else:
        assert fires("TC614", run.events).subject.module is not None
