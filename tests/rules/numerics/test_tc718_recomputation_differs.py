"""TC718: what a backward pass recomputes is compared with the first pass, on real programs."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn

from tests.checking import fires, net, quiet
from tests.collect.recording import Recording, recording
from tests.golden import mentions
from traincheck.collect.observers import recomputation
from traincheck.collect.observers.recomputation import RecomputationObserver
from traincheck.schema.claims import Needs, Schedule
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.gradients import DifferingSegment, Recomputation
from traincheck.schema.observations.reading import observed

Tensor = torch.Tensor
Forward = Callable[["Block", Tensor], Tensor]
PLAIN = torch_checkpoint.checkpoint
needs_hooks = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch does not tell who packs saved tensors",
)
both_modes = pytest.mark.parametrize(
    "reentrant",
    [pytest.param(True, id="reentrant"), pytest.param(False, id="other", marks=needs_hooks)],
)


def found(*shares: float) -> list[Event]:
    """A run with one checkpointed segment, of which so much differs in each step."""
    trace = net()
    for share in shares:
        segment = DifferingSegment("Block", "train.py:9", True, False, share)
        differing = ({name: getattr(segment, name) for name in DifferingSegment.__slots__},)
        trace.begin_step().zero_grad().forward().backward()
        trace.mark("recomputed", segments=1, differing=[*differing] if share else [])
        trace.optimizer_step()
    return trace.begin_step().build()


BROKEN = found(0.2, 0.3)


def test_fires_at_the_second_step_that_differs() -> None:
    finding = fires("TC718", found(0.2, 0, 0.3, 0.1))
    assert (finding.first_step, finding.violations) == (2, 1)
    assert mentions(finding.observed, "30%", "Block", "train.py:9")


@pytest.mark.parametrize("shares", [(0, 0, 0), (0, 0.5, 0)])
def test_quiet_without_a_second_step(shares: tuple[float, ...]) -> None:
    assert quiet("TC718", found(*shares)) is Verdict.HELD


def test_not_triggered_without_checkpointing() -> None:
    assert quiet("TC718", net().steps(4).build()) is Verdict.NOT_TRIGGERED


# -- real programs


class Block(nn.Module):
    def __init__(self, compute: Forward) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Dropout(0.1)
        self.compute, self.calls = compute, 0
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.compute(self, x)


def plain(block: Block, x: Tensor) -> Tensor:
    return torch.relu(block.layer(x)) @ block.layer.weight.t()


def dropout(block: Block, x: Tensor) -> Tensor:
    return x + block.drop(torch.relu(block.layer(x)))


def batch_norm(block: Block, x: Tensor) -> Tensor:
    return torch.relu(block.norm(block.layer(x)))


def nested(block: Block, x: Tensor) -> Tensor:
    inner = torch_checkpoint.checkpoint(block.layer, x, use_reentrant=False)
    assert isinstance(inner, Tensor)
    return torch.tanh(block.drop(inner))


def two_outputs(block: Block, x: Tensor) -> Tensor:
    y = block.layer(x)
    return torch.stack([y, block.drop(y)]).sum(0)


def scaled_by_calls(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.layer(x * block.calls))


def noise_of_python(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.layer(x * random.random()))


def noise_of_a_generator(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.layer(x + torch.randn(x.shape, generator=block.generator)))


def running_total(block: Block, x: Tensor) -> Tensor:
    total = block.get_buffer("total").add_(1)
    return torch.tanh(block.layer(x / total))


def last_scale_by_calls(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.layer(x)) * block.calls


def rounded_anew(block: Block, x: Tensor) -> Tensor:
    """As of kernels that add in another order."""
    return torch.relu(block.layer(x) * (1 + 1e-6 * block.calls))


class Net(nn.Module):
    def __init__(self, compute: Forward, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(compute), Block(compute)])
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch_checkpoint.checkpoint(block, x, **self.options)
        return x


def train(compute: Forward, *, steps: int = 5, **options: Any) -> list[Tensor]:
    """The weights, gradients of the last step, and the random state."""
    torch.manual_seed(0)
    random.seed(0)
    model = Net(compute, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 32, requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
    found = [t.detach() for p in model.parameters() for t in (p, p.grad) if t is not None]
    return [*found, torch.get_rng_state()]


def recorded(folder: Path, compute: Forward, **options: Any) -> Recording:
    """A recording of a training, which is the same as without."""
    bare = train(compute, **options)
    with recording(folder) as run:
        made = train(compute, **options)
    assert all(map(torch.equal, bare, made))
    assert torch_checkpoint.checkpoint is PLAIN
    return run


def records(run: Recording) -> list[Recomputation]:
    return [one for event in run.of("mark") if (one := observed(event, Recomputation))]


@both_modes
@pytest.mark.parametrize("compute", [plain, dropout, batch_norm, nested, two_outputs, rounded_anew])
def test_quiet_on_what_is_computed_again(tmp_path: Path, compute: Forward, reentrant: bool) -> None:
    run = recorded(tmp_path, compute, use_reentrant=reentrant)
    assert quiet("TC718", run.events) is Verdict.HELD
    assert all(one.segments >= 2 and not one.differing for one in records(run))


@both_modes
@pytest.mark.parametrize("compute", [dropout, two_outputs])
def test_fires_on_dropout_whose_random_state_is_not_kept(
    tmp_path: Path, compute: Forward, reentrant: bool
) -> None:
    run = recorded(tmp_path, compute, use_reentrant=reentrant, preserve_rng_state=False)
    finding = fires("TC718", run.events)
    assert finding.first_step == 1
    assert mentions(finding.observed, "Block", "preserve_rng_state=False")
    segment = records(run)[0].differing[0]
    assert (segment.reentrant, segment.preserves_rng) == (reentrant, False)
    assert (segment.where or "").rpartition(":")[0].endswith("test_tc718_recomputation_differs.py")


@both_modes
@pytest.mark.parametrize(
    "compute", [scaled_by_calls, noise_of_python, noise_of_a_generator, running_total]
)
def test_fires_on_state_that_is_not_restored(
    tmp_path: Path, compute: Forward, reentrant: bool
) -> None:
    fires("TC718", recorded(tmp_path, compute, use_reentrant=reentrant).events)


@needs_hooks
def test_what_comes_after_the_early_stop_is_not_compared(tmp_path: Path) -> None:
    """The graph of the first pass knows the scale: gradients are right."""
    run = recorded(tmp_path / "early", last_scale_by_calls, use_reentrant=False)
    assert quiet("TC718", run.events) is Verdict.HELD
    fires("TC718", recorded(tmp_path / "whole", last_scale_by_calls, use_reentrant=True).events)


@both_modes
def test_an_input_that_is_written_to_differs(tmp_path: Path, reentrant: bool) -> None:
    with recording(tmp_path) as run:
        layer = nn.Linear(8, 8)
        for _ in range(4):
            x = torch.randn(4, 8)
            y = torch_checkpoint.checkpoint(
                lambda x: torch.tanh(layer(x * 2)), x.requires_grad_(), use_reentrant=reentrant
            )
            x.data.zero_()
            y.sum().backward()
    fires("TC718", run.events)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@both_modes
def test_nothing_is_told_without_gradients(tmp_path: Path, reentrant: bool) -> None:
    with recording(tmp_path) as run, torch.no_grad():
        block = Block(dropout)
        for _ in range(4):
            torch_checkpoint.checkpoint(block, torch.randn(4, 32), use_reentrant=reentrant)
    assert not records(run)


def test_selective_checkpointing_is_let_alone(tmp_path: Path) -> None:
    def contexts() -> Any:
        operations = [torch.ops.aten.addmm.default]
        return torch_checkpoint.create_selective_checkpoint_contexts(operations)

    if not hasattr(torch_checkpoint, "create_selective_checkpoint_contexts"):
        pytest.skip("this torch cannot choose what is recomputed")
    run = recorded(tmp_path, dropout, use_reentrant=False, context_fn=contexts)
    assert quiet("TC718", run.events) is Verdict.NOT_TRIGGERED


@needs_hooks
def test_a_second_backward_pass_is_not_compared_again(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        block = Block(dropout)
        optimizer = torch.optim.SGD(block.parameters(), 0.1)
        for _ in range(4):
            x = torch.randn(4, 32)
            loss = torch_checkpoint.checkpoint(block, x, use_reentrant=False).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {one.segments for one in records(run)} == {1}


def test_what_could_not_be_compared_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with torch 2.4, which does not tell who packs saved tensors."""
    monkeypatch.setattr(recomputation, "_top_hooks", lambda _: None)
    run = recorded(tmp_path, scaled_by_calls, use_reentrant=False)
    assert quiet("TC718", run.events) is Verdict.NOT_TRIGGERED


def test_only_in_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "_SCHEDULE", Schedule(first=2, every=100))
    run = recorded(tmp_path, dropout, steps=8, use_reentrant=True)
    marks = [event.step for event in run.of("mark") if event.text == Recomputation.text]
    assert marks == [0, 1]


def test_nothing_is_replaced_where_no_check_needs_it(tmp_path: Path) -> None:
    with recording(tmp_path, needs=Needs(kinds=frozenset({"step"}))):
        assert torch_checkpoint.checkpoint is PLAIN
    with recording(tmp_path / "wanted", needs=Needs(states=frozenset({Recomputation.need}))):
        assert torch_checkpoint.checkpoint is not PLAIN


def test_an_exception_of_the_segment_passes_through(tmp_path: Path) -> None:
    def broken(block: Block, x: Tensor) -> Tensor:
        raise KeyError(x.shape[0], block.calls)

    with recording(tmp_path), pytest.raises(KeyError) as raised:
        torch_checkpoint.checkpoint(Block(broken), torch.randn(4, 32), use_reentrant=False)
    assert raised.value.args == (4, 1)
    del raised
    gc.collect()  # torch 2.4 takes its hooks away with the frames of the exception


@both_modes
def test_a_failure_of_ours_stays_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reentrant: bool
) -> None:
    def failing(value: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(recomputation, "_sample", failing)
    bare = train(dropout, use_reentrant=reentrant)
    with recording(tmp_path, must_be_whole=False) as run:
        made = train(dropout, use_reentrant=reentrant)
    assert all(map(torch.equal, bare, made))
    assert run.marks("fault")
    assert RecomputationObserver.__name__ in run.marks("fault")[0].data["in"]
