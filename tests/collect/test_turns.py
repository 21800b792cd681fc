"""Large tensors that training leaves alone: read in turns, and no write to them is lost."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.tracking import staggered_scan
from traincheck.collect.tracking.tracked_tensor import TrackedTensor
from traincheck.schema.claims import Needs

CALM = 8
SIDE = 32  # 4 kB a weight
SELECTIVE = Needs(states=frozenset({"parameter@*", "buffer@*"}), kinds=frozenset({"step"}))
FEW = pytest.mark.parametrize("needs", [None, SELECTIVE], ids=["all", "-i"])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two weights are a share: ten are read within five steps or six."""
    monkeypatch.setattr(staggered_scan, "_LARGE", 4096)
    monkeypatch.setattr(staggered_scan, "_SHARE", 2 * 4096)


class Adapted(nn.Module):
    """Frozen layers with a small trained one on top."""

    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(*[nn.Linear(SIDE, SIDE, bias=False) for _ in range(10)])
        self.base.requires_grad_(False)
        self.register_buffer("table", torch.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE))
        self.top = nn.Linear(SIDE, 2)

    def forward(self, x):
        return self.top(self.base(x) + self.table[0])


def train(write=lambda model, step: None, steps=CALM + 20):
    """Train with ``write`` before each step."""
    torch.manual_seed(0)
    model = Adapted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(steps):
        write(model, step)
        model(torch.ones(2, SIDE)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def changes(run):
    """In which steps each tensor changed, but for gradients."""
    found = defaultdict(list)
    for event in run.events:
        if event.kind == "state" and event.change == "content" and event.role != "gradient":
            found[event.name.removeprefix("Adapted.")].append(event.step)
    return found


@FEW
@pytest.mark.parametrize("low", [0, 1 << 62], ids=["high", "low"])
def test_frozen_layers_are_read_in_turns(tmp_path, monkeypatch, needs, low):
    """Wherever they lie: in interpreters that have a fixed place, small ones lie low."""
    monkeypatch.setattr(staggered_scan, "LOW", low)
    read: Counter[str] = Counter()
    exact_digest = TrackedTensor.exact_digest

    def counted(variable, tensor):
        read[variable.name] += 1
        return exact_digest(variable, tensor)

    monkeypatch.setattr(TrackedTensor, "exact_digest", counted)
    with recording(tmp_path, needs=needs, every=1) as run:
        train(steps=60)
    frozen = [count for name, count in read.items() if ".base." in name]
    assert len(frozen) == 10
    assert min(frozen) >= CALM + (60 - CALM) // 6, "each at times"
    assert max(frozen) <= CALM + 2 + (60 - CALM) // 5, "none in each step"
    assert set(changes(run)) == {"top.weight", "top.bias"}


def copied(model, step):
    with torch.no_grad():
        model.base[3].weight.copy_(torch.full((SIDE, SIDE), float(step)))
        model.table[SIDE // 2 + 3, 5] += 1


def hidden(model, step):
    model.base[3].weight.data.mul_(0.9)
    model.table.data.mul_(0.9)


def replaced(model, step):
    model.base[3].weight.data = model.base[3].weight.data * 0.9
    model.table = model.table * 0.9


@FEW
@pytest.mark.parametrize("write", [copied, hidden, replaced])
@pytest.mark.parametrize("first", [0, CALM + 5])
def test_a_write_is_told_in_its_step(tmp_path, needs, write, first):
    """Of averages, as an example: from the first one on, whenever that is."""
    with recording(tmp_path, needs=needs, every=1) as run:
        train(lambda model, step: write(model, step) if step >= first else None)
    found = changes(run)
    late = first + (first == 0 and needs is not None)  # whether the first probe is all there is
    assert [s for s in found["base.3.weight"] if s >= late] == list(range(late, CALM + 20))
    assert [s for s in found["table"] if s >= late] == list(range(late, CALM + 20))
    assert set(found) == {"base.3.weight", "table", "top.weight", "top.bias"}


def test_a_write_that_hides_is_told_some_steps_later(tmp_path):
    """One element between the places that a probe reads, past the version counter."""

    def write(model, step):
        if step == CALM + 5:
            model.base[3].weight.data.view(-1)[300] += 1

    with recording(tmp_path) as run:
        train(write)
    (step,) = changes(run)["base.3.weight"]
    assert CALM + 5 <= step <= CALM + 5 + 6


def test_a_layer_that_is_trained_again_is_looked_at(tmp_path):
    def write(model, step):
        if step == CALM + 5:
            model.base[9].weight.requires_grad_(True)

    with recording(tmp_path) as run:
        train(write)
    assert changes(run)["base.9.weight"] == list(range(CALM + 5, CALM + 20))
