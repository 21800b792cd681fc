"""TC204: gradients that are cleared inside the accumulation window."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.window import batch, scaler_step
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.gradients import ReplacedGradients
from traincheck.schema.torch_api import Families


def windows(
    count: int, *, size: int = 4, clears: bool = True, same_batch: bool = False
) -> TraceBuilder:
    """``count`` windows of ``size`` batches, as the step counter cuts them."""
    trace, number = net(), 0
    for _ in range(count):
        for micro in range(size):
            batch(trace, 0 if same_batch else number)
            if clears:
                if trace.counters["backward"]:
                    trace.end_step()
                trace.begin_step()
            elif micro == 0:
                trace.begin_step()
            if clears or micro == 0:
                trace.zero_grad()
            trace.forward().backward()
            number += 1
        trace.optimizer_step()
    return trace


BROKEN = windows(4).build()


def test_fires_where_every_batch_clears(golden: Golden) -> None:
    finding = fires("TC204", BROKEN)
    assert finding.first_step == 0
    assert finding.subject.api == Families.ZERO_GRAD
    golden(finding)
    assert mentions(finding, 3, 4, "train.py:80")


def last_clears(count: int, *, cleared_at: int = 3, has_loader: bool = True) -> TraceBuilder:
    """Windows of four passes; gradients are cleared before one of them."""
    trace, number = net(), 0
    for _ in range(count):
        trace.begin_step()
        for micro in range(4):
            if has_loader:
                batch(trace, number)
            if micro == cleared_at:
                trace.zero_grad()
            trace.forward().backward()
            number += 1
        trace.optimizer_step()
    return trace


def test_counts_all_batches_where_only_the_last_clears() -> None:
    finding = fires("TC204", last_clears(4).build())
    assert mentions(finding, "3 of every 4 batches")


def test_counts_all_passes_where_there_is_no_loader() -> None:
    finding = fires("TC204", last_clears(4, has_loader=False).build())
    assert mentions(finding, "3 of every 4 backward passes")


def test_quiet_without_a_loader_where_as_many_passes_follow() -> None:
    # A sharpness-aware step that accumulates: both halves are of the same batches.
    assert quiet("TC204", last_clears(6, cleared_at=2, has_loader=False).build()) is Verdict.HELD


def test_quiet_without_a_loader_where_another_line_computes_the_last_gradient() -> None:
    events = last_clears(6, has_loader=False).build()
    passes = 0
    for index, event in enumerate(events):
        if isinstance(event, CallEvent) and event.api == Families.BACKWARD:
            passes += 1
            line = 80 if passes % 4 else 90
            events[index] = event.replace(where=f"train.py:{line}")
    assert quiet("TC204", events) is Verdict.HELD


def test_quiet_where_one_batch_is_used_several_times_and_cleared_once() -> None:
    trace = net()
    for number in range(5):
        trace.begin_step()
        batch(trace, number)
        for _ in range(3):
            trace.forward().backward()
        trace.zero_grad().forward().backward().optimizer_step()
    assert quiet("TC204", trace.build()) is Verdict.HELD


def test_quiet_on_accumulation_as_it_should_be() -> None:
    assert quiet("TC204", windows(5, clears=False).build()) is Verdict.HELD
    assert quiet("TC204", net().steps(5, accumulate=4).build()) is Verdict.HELD


def test_quiet_where_one_batch_is_used_several_times() -> None:
    # adversarial examples, sharpness-aware steps
    assert quiet("TC204", windows(5, size=2, same_batch=True).build()) is Verdict.HELD


def test_quiet_on_a_batch_left_out_now_and_then() -> None:
    trace, number = net(), 0
    for step in range(8):
        trace.begin_step()
        for _ in range(2 if step % 3 == 0 else 1):
            batch(trace, number).zero_grad().forward().backward()
            number += 1
        trace.optimizer_step()
    assert quiet("TC204", trace.build()) is Verdict.HELD


def test_quiet_on_a_gan() -> None:
    trace = TraceBuilder().process().model("G").model("D")
    gen, dis = [[f"{m}.{name}" for name in MLP] for m in "GD"]
    trace.optimizer(names=gen).optimizer(names=dis)
    for number in range(5):
        trace.begin_step()
        batch(trace, number)
        trace.zero_grad("opt1").forward("D").backward(dis).optimizer_step("opt1")
        trace.zero_grad("opt0").forward().backward().optimizer_step("opt0")
    assert quiet("TC204", trace.build()) is Verdict.HELD


def test_quiet_where_a_generator_is_cut_off_from_its_loss() -> None:
    """What its backward() leaves in the critic is cleared before the next: as it should be."""
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    trace.optimizer(names=[f"G.{n}" for n in MLP]).optimizer(names=[f"D.{n}" for n in MLP])
    critic = [f"D.{name}" for name in MLP]
    for _ in range(8):
        trace.begin_step().batch()
        trace.zero_grad("opt1").backward(only=critic).optimizer_step("opt1")
        trace.zero_grad("opt0").backward(only=critic).optimizer_step("opt0")
    assert quiet("TC204", trace.build()) is Verdict.HELD


def test_quiet_where_grad_scaler_skips() -> None:
    trace = net()
    for number in range(6):
        batch(trace.begin_step(), number).zero_grad().forward().backward()
        scaler_step(trace, skips=number < 4)
    assert quiet("TC204", trace.build()) is Verdict.HELD


def test_quiet_without_a_loader_where_each_pass_clears() -> None:
    events = [e for e in BROKEN if e.kind != "batch"]
    assert quiet("TC204", events) is Verdict.HELD


def test_quiet_on_gradients_that_a_program_sums_up_itself(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        total: list[torch.Tensor] = []
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            now = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            total = [a + b for a, b in zip(total, now, strict=True)] if total else now
            if i % 2:
                for parameter, gradient in zip(model.parameters(), total, strict=True):
                    parameter.grad = gradient / 2
                optimizer.step()
                total = []
    assert len(run.marks(ReplacedGradients.text)) == 6
    assert quiet("TC204", run.events) is Verdict.NOT_TRIGGERED


def test_clipping_replaces_no_gradient(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as run:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for set_to_none in (True, False, True):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.randn(8, 4)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    assert run.marks(ReplacedGradients.text) == []
