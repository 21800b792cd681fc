"""What waits for a device, and where. Tensors on ``meta`` raise where a number of them is read."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from traincheck.collect.stats import argument_stats
from traincheck.collect.stats.argument_stats import MODULES
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tracking.model_structure import has_initial_statistics
from traincheck.schema.claims import Needs

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NUMBERS = {
    "leaf": lambda t: argument_stats.of_leaf(t, full=True),
    "weights": argument_stats.of_weights,
    "argument": argument_stats.of_argument,
    "activation": lambda t: argument_stats.of_activation(t, MODULES[nn.ReLU]),
    "sigmoid": lambda t: argument_stats.of_activation(t, MODULES[nn.Sigmoid]),
    "hidden": lambda t: {"hidden": argument_stats.share_hidden(t)},
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_number_of_a_tensor_waits_for_its_device(name, dtype):
    found = NUMBERS[name](torch.ones(8, 8, device="meta", dtype=dtype))
    assert found
    assert {number.device.type for number in found.values()} == {"meta"}


def test_a_wait_is_seen():
    tensor = torch.ones(8, device="meta")
    with pytest.raises(RuntimeError, match=r"(?i)meta"):
        tensor.sum().item()
    with pytest.raises(RuntimeError, match=r"(?i)meta"):
        tensor[tensor > 0]


@pytest.mark.parametrize("weights", [torch.ones(5, 5), torch.ones(6, 6).tril(), torch.eye(4)])
def test_the_share_of_hidden_weights_is_that_of_those_above_the_diagonal(weights):
    above = weights[torch.ones_like(weights, dtype=torch.bool).triu(1)]
    assert argument_stats.share_hidden(weights) == (above == 0).to(torch.float32).mean()


def test_statistics_of_a_batch_norm_that_saw_nothing():
    norm = nn.BatchNorm1d(3)
    assert has_initial_statistics(norm)
    for change in ("num_batches_tracked", "running_mean", "running_var"):
        other = nn.BatchNorm1d(3)
        getattr(other, change).add_(1)
        assert not has_initial_statistics(other)


def test_numbers_on_the_host_are_as_they_were():
    assert host(torch.tensor([1.5, math.inf])).tolist() == [1.5, math.inf]


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_numbers_are_read_where_waiting_is_an_error():
    numbers = torch.arange(5.0, device="cuda") * 2
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            numbers.tolist()
        found = host(numbers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.tolist() == [0, 2, 4, 6, 8]


class Net(nn.Module):
    """Parts that are looked at in different ways."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.words, self.mix = nn.Embedding(10, 16), nn.TransformerEncoderLayer(16, 2, 16)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(4 * 36 + 16, 3)

    def forward(self, x, ids):
        seen = torch.relu(self.norm(self.conv(x))).flatten(1)
        read = self.mix(self.words(ids)).mean(1)
        return self.head(self.drop(torch.cat([seen, read], 1)))


class Loop:
    """Steps of it on the GPU, none of which waits."""

    def __init__(self, **optimizer):
        torch.manual_seed(0)
        self.model = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, **optimizer)
        self.x, self.ids = torch.randn(4, 1, 8, 8).cuda(), torch.randint(0, 10, (4, 6)).cuda()
        self.labels = torch.randint(0, 3, (4,)).cuda()

    def loss(self):
        return nn.functional.cross_entropy(self.model(self.x, self.ids), self.labels)

    def step(self):
        self.optimizer.zero_grad()
        self.loss().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def weights(self):
        torch.cuda.synchronize()
        return [fingerprint(p.detach().cpu()) for p in self.model.parameters()]


def changed(run, role):
    return {e.name for e in run.of("state") if e.role == role and e.change in ("content", "set")}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("needs", [None, Needs(states=frozenset({"parameter@*"}))], ids=str)
def test_on_a_gpu_recorded_steps_raise_nothing_where_waiting_is_an_error(tmp_path, needs):
    with recording(tmp_path, needs=needs) as run:  # fails on a fault
        loop = Loop()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(4):
                loop.step()
                run.session.user_marks.mark_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert "Net.head.weight" in changed(run, "parameter")


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_recording_changes_no_bit(tmp_path):
    loops = []
    for is_recorded in (False, True):
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            if is_recorded:
                with recording(tmp_path):
                    loops.append(Loop())
                    [loops[-1].step() for _ in range(4)]
            else:
                loops.append(Loop())
                [loops[-1].step() for _ in range(4)]
        finally:
            torch.use_deterministic_algorithms(False)
    assert loops[0].weights() == loops[1].weights()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"capturable": True}])
def test_on_a_gpu_every_kind_of_optimizer_is_seen(tmp_path, options):
    with recording(tmp_path) as run:
        loop = Loop(**options)
        for _ in range(3):
            loop.step()
    assert {f"Net.{name}" for name, _ in loop.model.named_parameters()} <= changed(run, "parameter")


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_scaler_that_skips_a_step_leaves_parameters(tmp_path):
    with recording(tmp_path) as run:
        loop, scaler = Loop(), torch.amp.GradScaler("cuda")
        for step in range(4):
            loop.optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = loop.loss() * (math.inf if step == 1 else 1)
            scaler.scale(loss).backward()
            scaler.step(loop.optimizer)
            scaler.update()
    moved = {e.step for e in run.of("state") if e.role == "parameter" and e.change == "content"}
    assert moved == {0, 2, 3}


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_steps_on_another_stream_are_seen_as_they_are(tmp_path):
    with recording(tmp_path) as run:
        loop = Loop()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                loop.step()
                run.session.user_marks.mark_step()
    last = [e for e in run.of("state") if e.name == "Net.head.weight" and e.change == "content"][-1]
    assert last.summary.fingerprint == fingerprint(loop.model.head.weight)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_threads_with_models_of_their_own_are_both_seen(tmp_path):
    with recording(tmp_path) as run:
        loops = [Loop(), Loop()]
        torch.cuda.synchronize()

        def work(loop):
            with torch.cuda.stream(torch.cuda.Stream()):
                [loop.step() for _ in range(3)]

        threads = [threading.Thread(target=work, args=(loop,)) for loop in loops]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert {name.partition(".")[0] for name in changed(run, "parameter")} == {"Net", "Net#2"}


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_step_is_captured_and_replayed(tmp_path):
    with recording(tmp_path) as run:
        loop = Loop(capturable=True)
        loop.model.drop.p = 0.0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                loop.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        loop.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            loss = loop.loss()
            loss.backward()
            loop.optimizer.step()
        before = loop.weights()
        graph.replay()
        torch.cuda.synchronize()
        assert loop.weights() != before
        loop.step()
    assert "Net.head.weight" in changed(run, "parameter")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.slow
def test_on_a_gpu_a_compiled_model_is_seen(tmp_path):
    with recording(tmp_path) as run:
        loop = Loop()
        compiled = torch.compile(loop.model)
        for _ in range(3):
            loop.optimizer.zero_grad()
            nn.functional.cross_entropy(compiled(loop.x, loop.ids), loop.labels).backward()
            loop.optimizer.step()
    assert "Net.head.weight" in changed(run, "parameter")


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_pinned_batches_of_workers_are_recorded(tmp_path):
    data = TensorDataset(torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,)))
    with recording(tmp_path) as run:
        loop = Loop()
        loader = DataLoader(data, batch_size=4, num_workers=1, pin_memory=True)
        for x, labels in loader:
            loop.x, loop.labels = x.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            loop.step()
    assert len(run.of("batch")) == 4
    assert "Net.head.weight" in changed(run, "parameter")
