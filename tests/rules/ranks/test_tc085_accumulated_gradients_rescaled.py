"""TC085: gradients that are scaled in the middle of an accumulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.torchrun import record_ranks
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary

NAMES = sorted(f"Net.{name}" for name in MLP)
Between = Callable[[int, list[nn.Parameter]], None]


def window(trace: TraceBuilder, factor: float, passes: int = 3, line: str = "train.py:84") -> None:
    """One optimizer step. factor: of the gradients before each pass but the first."""
    trace.begin_step().zero_grad()
    norm = 0.0
    for number in range(passes):
        trace.forward()
        if number:
            norm *= factor
            after = trace.new_span() + 1
            trace.mark("gradients written", after=after, names=NAMES, norms=[norm] * len(NAMES))
        norm += 1.0
        first = len(trace.events)
        trace.backward()
        for event in trace.events[first:]:
            if event.kind == "state":
                summary = TensorSummary("float32", (4,), stats={"norm": norm}, zero=False)
                trace.edit(event, summary=summary)
            elif event.kind == "call":
                trace.edit(event, where=line if number else "train.py:84")
    trace.optimizer_step()


def run(
    factor: float, *, steps: int = 4, passes: int = 3, line: str = "train.py:84"
) -> list[Event]:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for _ in range(steps):
        window(trace, factor, passes, line)
    return trace.begin_step().end_step().build()


BROKEN = run(0.25)


def test_fires_where_each_pass_is_followed_by_a_factor(golden: Golden) -> None:
    finding = golden(fires("TC085", BROKEN))
    assert (finding.first_step, finding.violations) == (0, 1)
    assert mentions(finding, 0.25, "all 4 gradients")


def test_fires_on_one_factor_a_step_between_passes_of_one_line() -> None:
    assert fires("TC085", run(0.25, passes=2)).first_step == 0


def test_quiet_on_plain_sums_and_on_a_weight_of_another_loss() -> None:
    assert quiet("TC085", run(1.0)) is Verdict.HELD
    assert quiet("TC085", run(0.25, passes=2, line="train.py:90")) is Verdict.HELD


def trained(
    folder: Path, between: Between, *, passes: int = 3, last: Between | None = None
) -> list[Event]:
    """A real program. between: what it does after each backward pass; last: before the update."""
    with recording(folder) as run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for number in range(passes):
                loss = model(torch.randn(8, 4)).pow(2).mean()
                (loss / (number + 1) if between is running_mean else loss).backward()
                between(number, parameters)
            if last is not None:
                last(passes, parameters)
            optimizer.step()
    return run.events


def gradients(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def nothing(number: int, parameters: list[nn.Parameter]) -> None:
    """A plain accumulation."""


def divide(number: int, parameters: list[nn.Parameter]) -> None:
    for gradient in gradients(parameters):
        gradient.div_(4)


def divide_data(number: int, parameters: list[nn.Parameter]) -> None:
    torch._foreach_mul_([gradient.data for gradient in gradients(parameters)], 0.5)


def clip(number: int, parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def running_mean(number: int, parameters: list[nn.Parameter]) -> None:
    for gradient in gradients(parameters):
        gradient.mul_((number + 1) / (number + 2))


def one_of_them(number: int, parameters: list[nn.Parameter]) -> None:
    gradients(parameters)[0].mul_(0.5)


@pytest.mark.parametrize(
    ("between", "passes"), [(divide, 2), (divide, 3), (divide_data, 3)]
)  # half of two passes is their mean
def test_fires_on_a_real_loop(tmp_path: Path, between: Between, passes: int) -> None:
    finding = fires("TC085", trained(tmp_path, between, passes=passes))
    assert finding.first_step == 0
    assert mentions(finding, 0.25 if between is divide else 0.5)


@pytest.mark.parametrize("between", [nothing, clip, running_mean, one_of_them])
def test_quiet_on_real_loops(tmp_path: Path, between: Between) -> None:
    assert quiet("TC085", trained(tmp_path, between)) is Verdict.HELD


def test_quiet_where_the_sum_is_divided_once(tmp_path: Path) -> None:
    assert quiet("TC085", trained(tmp_path, nothing, last=divide)) is Verdict.HELD


def test_quiet_where_gradients_decay_from_update_to_update(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            for gradient in gradients(list(model.parameters())):
                gradient.mul_(0.5)
    assert quiet("TC085", run.events) is Verdict.NOT_TRIGGERED
    assert any(call.api == Families.BACKWARD for call in run.events if call.kind == "call")


needs_scales = pytest.mark.skipif(
    torch.__version__ < (2, 6), reason="pipelines of torch before 2.6 scale no gradients"
)
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
first, last = nn.Sequential(nn.Linear(10, 16), nn.ReLU()), nn.Sequential(nn.Linear(16, 4))
module = last if RANK else first
stage = PipelineStage(module, RANK, WORLD, torch.device("cpu"))
scales, times = sys.argv[1] == "scales", int(sys.argv[2])
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.cross_entropy, scale_grads=scales)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    for _ in range(times):
        if RANK:
            schedule.step(target=torch.randint(0, 4, (16,)), losses=[])
        else:
            schedule.step(torch.randn(16, 10))
    optimizer.step()
"""


@needs_scales
@pytest.mark.slow
def test_fires_on_a_pipeline_that_scales_several_times_a_step(tmp_path: Path) -> None:
    finding = fires("TC085", record_ranks(tmp_path, PIPELINE, "scales", "3"))
    assert (finding.first_step, finding.violations) == (0, 2)  # one on each rank


@needs_scales
@pytest.mark.slow
@pytest.mark.parametrize(("scales", "times"), [("scales", "1"), ("not", "3")])
def test_quiet_on_pipelines_that_scale_once_or_never(
    tmp_path: Path, scales: str, times: str
) -> None:
    assert quiet("TC085", record_ranks(tmp_path, PIPELINE, scales, times)) is Verdict.HELD
