"""What fails of ours is told where it happened: what is missing there proves nothing."""

from __future__ import annotations

import importlib

import orjson
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checking import report_of
from tests.collect.recording import recording
from tests.learning import learn
from tests.learning import report_of as report_of_learned
from traincheck.collect.launch import run_manifest
from traincheck.collect.session.faults import MAX_FAULTS
from traincheck.schema.layout import FAULTS_GLOB
from traincheck.schema.marks import Marks


class OurError(Exception):
    pass


def fail(*args, **kwargs):
    raise OurError("by us")


def train(steps=16, at=None, monkeypatch=None, target=""):
    """A healthy run; in step ``at`` and from then on something of ours fails."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(steps):
        if step == at:
            monkeypatch.setattr(target, fail)
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        F.mse_loss(net(x), x[:, :1]).backward()
        optimizer.step()


FAULTS = {
    "traincheck.collect.instruments._wrap.is_grad_enabled": "functional",
    "traincheck.collect.instruments.optimizers.place": "optimizers",
}


@pytest.mark.parametrize("target", FAULTS)
@pytest.mark.parametrize("at", [0, 5])
def test_no_finding_where_we_fail(tmp_path, monkeypatch, target, at):
    with recording(tmp_path / "good") as good:
        train()
    learned = learn(good.events).invariants
    with recording(tmp_path / "new", must_be_whole=False) as run, monkeypatch.context() as patch:
        train(at=at, monkeypatch=patch, target=target)
    assert report_of(run.events).findings == []
    report = report_of_learned(learned, run.events)
    assert report.findings == []
    assert at in [mark.step for mark in run.marks(Marks.DROPPED)]
    torn = {event.step for event in run.of("step") if not event.recorded}
    assert torn == {mark.step for mark in run.marks(Marks.DROPPED)}
    (off,) = run.marks("instrument disabled")
    assert off.data["instrument"] == FAULTS[target]


def test_a_missing_call_is_still_found_once_nothing_fails_any_more(tmp_path, monkeypatch):
    with recording(tmp_path / "good") as good:
        train()
    learned = [i for i in learn(good.events).invariants if i.hypothesis.relation == "contains"]
    with recording(tmp_path / "new", must_be_whole=False) as run:
        with monkeypatch.context() as patch:
            train(
                1,
                at=0,
                monkeypatch=patch,
                target="traincheck.collect.instruments._wrap.is_grad_enabled",
            )
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for _ in range(12):
            weight.pow(2).sum().backward()
            optimizer.step()
    assert report_of_learned(learned, run.events).findings


def test_the_manifest_counts_them(tmp_path, monkeypatch):
    with recording(tmp_path / "run", must_be_whole=False), monkeypatch.context() as patch:
        train(
            at=3, monkeypatch=patch, target="traincheck.collect.instruments._wrap.is_grad_enabled"
        )
    (path,) = (tmp_path / "run").glob(FAULTS_GLOB)
    times = sum(fault["times"] for fault in orjson.loads(path.read_bytes())["faults"])
    assert times >= MAX_FAULTS
    (note,) = run_manifest._faults(tmp_path / "run")
    assert note.startswith(f"recording failed {times} times in process ")
    assert "OurError('by us')" in note
    assert note.endswith("switched off: functional")


def test_a_package_that_nobody_imports_is_told(tmp_path):
    with recording(tmp_path / "run", instrument=("wave", "no_such_package")) as run:
        importlib.import_module("wave")
        train(2)
    pid = run.marks("process")[0].data["pid"]
    assert run_manifest._not_imported(run.folder, {pid}) == [
        "no process imported no_such_package, so no calls to it were recorded"
    ]
    assert run_manifest._not_imported(run.folder, {pid, pid + 1}) == []  # the other did


def test_nothing_is_left_where_nothing_failed(tmp_path):
    with recording(tmp_path / "run") as run:
        train(2)
    assert not list((tmp_path / "run").glob(FAULTS_GLOB))
    assert not run.marks(Marks.DROPPED)
