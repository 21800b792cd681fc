"""Scans of tensors on devices: started together, read when the step ends, no change missed."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.collect.conftest import mix
from tests.collect.recording import recording
from traincheck.collect.tracking import change_detector, deferred_scan
from traincheck.collect.tracking.deferred_scan import DeferredScan, DeferredScans
from traincheck.collect.tracking.tracked_tensor import TrackedTensor

X = torch.linspace(-1, 1, 24).view(6, 4)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.norm(self.layer(x)).relu())


def program(device="cpu"):
    torch.manual_seed(0)
    model, x = Net().to(device), X.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step != 2)
        model(x).pow(2).sum().backward()
        if step == 3:
            for parameter in model.head.parameters():
                parameter.grad.zero_()
            model.head.requires_grad_(False)
        optimizer.step()


def told(run):
    """The records of each step; zeros are recorded for gradients."""
    return sorted(
        (
            e.step,
            e.role,
            e.name,
            e.change,
            e.after,
            e.summary is not None and e.summary.zero is True,
        )
        for e in run.of("state")
    )


@pytest.mark.parametrize("every", [1, 2])
def test_looks_at_devices_find_what_others_do(tmp_path, monkeypatch, request, every):
    with recording(tmp_path / "near", every=every) as near:
        program()
    request.getfixturevalue("far")
    begins, begin = [], deferred_scan.start
    monkeypatch.setattr(
        deferred_scan, "start", lambda parts: begins.append(len(parts)) or begin(parts)
    )
    with recording(tmp_path / "far", every=every) as run:
        program()
    assert told(run) == told(near)
    marks = {e.summary.fingerprint for e in run.of("state") if e.summary}
    assert all(mark.startswith("mix-128:") for mark in marks)
    assert len(marks) == len({e.summary.fingerprint for e in near.of("state") if e.summary})
    assert max(begins) > 4


def test_a_step_waits_once(tmp_path, monkeypatch, far):
    reads, look = [], deferred_scan.read
    monkeypatch.setattr(
        deferred_scan, "read", lambda batches: reads.append(len(batches)) or look(batches)
    )
    with recording(tmp_path):
        program()
    assert len(reads) == 4
    assert min(reads) > 2


def test_steps_without_looks_are_taken_over_without_waiting(tmp_path, monkeypatch, far):
    waits = []
    monkeypatch.setattr(
        change_detector, "fingerprint", lambda tensor: waits.append(1) or mix(tensor)
    )
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step():
            optimizer.zero_grad()
            model(X).sum().backward()
            optimizer.step()

        step()
        run.session.user_marks.mark_step()
        waits.clear()
        its = run.session.tracker.detector
        with torch.no_grad():
            model.weight.add_(1)
        run.session.tracker.scans.rebaseline(run.session.live.live_optimizers())
        assert not waits
        assert its.pending
        model.bias.data.zero_()
        its.scan_all(
            run.session.local.em, [(TrackedTensor("new", "buffer", None), torch.ones(1))], 0
        )
        its.resolve(run.session.local.em)
        known = {
            v.name: v.digest
            for r in run.session.tracker.roots.values()
            for v, _ in r.parameters.variables.values()
        }
        assert known["Linear.weight"] == mix(model.weight)
        assert known["Linear.bias"] != mix(model.bias)
    assert [e.change for e in run.of("state") if e.name == "new"] == ["content"]
    assert not waits


def test_a_gradient_that_is_cleared_in_its_step_is_set_before_and_after(tmp_path, far):
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.session.user_marks.mark_step()
    changes = [
        (e.step, e.change)
        for e in run.of("state")
        if (e.role, e.name) == ("gradient", "Linear.bias")
    ]
    assert changes == [(step, change) for step in range(3) for change in ("set", "cleared")]


def of(name, role="parameter"):
    return TrackedTensor(name, role, None)


def look_at(*tensors):
    """Fingerprints, and which are zero, by looks that begin together."""
    looks = DeferredScans()
    for tensor in tensors:
        assert looks.add(DeferredScan(variable=of("x"), after=0), tensor)
    looks.begin()
    assert looks
    found = list(looks.read())
    assert not looks
    return [f.fingerprint for f in found], [f.is_zero for f in found]


class Sharded(torch.Tensor):
    """As DTensor does: this rank's part is in ``_local_tensor``."""


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_tensors_of_several_parts():
    rows = torch.eye(3)
    zeros = torch.sparse_coo_tensor([[1, 1]], [0.0, 0.0], (3,), check_invariants=True)
    shard = torch.zeros(4, 2).as_subclass(Sharded)
    shard._local_tensor = torch.zeros(2)
    tensors = [
        rows, rows.to_sparse(), rows.to_sparse_csr(), (rows * 0).to_sparse_csr(),
        torch.nested.nested_tensor([rows, rows[:2]]), TwoTensor(rows, rows * 2),
        TwoTensor(rows * 0, rows * 0), zeros, shard,
    ]  # fmt: skip
    prints, are_zero = look_at(*tensors)
    assert prints[:-1] == [mix(tensor) for tensor in tensors[:-1]]
    assert prints[-1] == f"shard-{mix(torch.zeros(2))}"
    assert len(set(prints)) == len(prints)
    assert are_zero == [False, False, False, True, False, False, True, True, True]


def test_a_sign_is_no_zero():
    assert look_at(torch.zeros(3), -torch.zeros(3))[1] == [True, False]


def test_nothing_is_kept_of_the_tensors():
    looks, tensor = DeferredScans(), torch.ones(100, 100)
    looks.add(DeferredScan(variable=of("x"), after=0), tensor)
    looks.begin()
    expected, kept = mix(tensor), weakref.ref(tensor.untyped_storage())
    tensor.zero_()
    del tensor
    assert kept() is None
    assert [found.fingerprint for found in looks.read()] == [expected]


def test_numbers_that_are_on_devices_are_read_with_them():
    looks = DeferredScans()
    one, other = of("one"), of("other")
    one.stats = torch.tensor(3.0)
    for variable in (other, one):
        looks.add(DeferredScan(variable=variable, after=0), torch.ones(2))
    assert one.stats == b""
    looks.begin()
    assert [found.stats for found in looks.read()] == [b"", b'{"norm":3.0,"nonfinite":0}']


def test_what_is_captured_is_neither_waited_for_nor_remembered(tmp_path, monkeypatch, far):
    begun = []
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            is_captured = step == 1
            monkeypatch.setattr(deferred_scan, "is_capturing", lambda now=is_captured: now)
            if is_captured:
                optimizer.zero_grad()
            model(X).pow(2).sum().backward()
            optimizer.step()
            begun.append(bool(run.session.tracker.detector.pending))
            run.session.user_marks.mark_step()
            assert not run.session.tracker.detector.pending
    assert begun == [True, False, True, True]
    changes = [e for e in run.of("state") if e.name == "Linear.bias" and e.change != "new"]
    assert [(e.step, e.role, e.change) for e in changes] == [
        (0, "gradient", "set"), (0, "parameter", "content"), (1, "gradient", "cleared"),
        (2, "gradient", "set"), (2, "parameter", "content"),
        (3, "gradient", "content"), (3, "parameter", "content"),
    ]  # fmt: skip


def test_looks_that_are_begun_before_a_capture_are_lost_if_it_lasts(monkeypatch):
    looks = DeferredScans()
    looks.add(DeferredScan(variable=of("x"), after=0), torch.ones(2))
    looks.begin()
    monkeypatch.setattr(deferred_scan, "is_capturing", lambda: True)
    monkeypatch.setattr(deferred_scan, "read", None)
    assert not list(looks.read())
    assert not looks


@pytest.mark.parametrize("name", ["start", "read"])
def test_a_failure_is_counted_and_later_looks_go_on(tmp_path, monkeypatch, far, name):
    works, fails = getattr(deferred_scan, name), []

    def failing(*args):
        if fails:
            raise RuntimeError("out of memory")
        return works(*args)

    monkeypatch.setattr(deferred_scan, name, failing)
    with recording(tmp_path, must_be_whole=False) as run:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            fails[:] = [1] if step == 1 else []
            optimizer.zero_grad()
            model(X).pow(2).sum().backward()
            optimizer.step()
            run.session.user_marks.mark_step()
            assert not run.session.tracker.detector.pending
    assert run.marks("fault")
    changes = [
        (e.step, e.change)
        for e in run.of("state")
        if (e.role, e.name) == ("gradient", "Linear.bias")
    ]
    assert (1, "set") not in changes
    assert {(0, "set"), (2, "set"), (3, "set")} <= set(changes)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_looks_find_what_they_do_on_the_cpu(tmp_path):
    found = []
    for device in ("cpu", "cuda"):
        with recording(tmp_path / device) as run:
            program(device)
        found.append([(*fields[:4], fields[5]) for fields in told(run)])
    assert found[0] == found[1]
    prints = [e.summary.fingerprint for e in run.of("state") if e.role == "parameter" and e.summary]
    assert all(text.startswith("mix-128:") for text in prints)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_nothing_waits_before_all_is_read():
    looks, tensors = DeferredScans(), [torch.ones(3, i + 1, device="cuda") for i in range(300)]
    expected = [mix(tensor.cpu()) for tensor in tensors]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for tensor in (*tensors, tensors[0].t(), torch.ones(5, 2, device="cuda").t()):
            looks.add(DeferredScan(variable=of("x"), after=0), tensor)
        looks.begin()
        for tensor in tensors:
            tensor.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = [found.fingerprint for found in looks.read()]
    assert found[:300] == expected


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_capture_goes_on():
    looks, tensor = DeferredScans(), torch.ones(3, device="cuda")
    look = DeferredScan(variable=of("x"), after=0)
    graph = torch.cuda.CUDAGraph()
    looks.add(look, tensor)
    looks.begin()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        assert not list(looks.read())
        assert not looks.add(look, tensor)
        looks.begin()
    assert not looks
    graph.replay()
    assert looks.add(look, tensor)
    looks.begin()
    assert [found.fingerprint for found in looks.read()] == [mix(torch.full((3,), 2.0))]
