"""TC054: copies of tied weights that training makes differ. Real programs and a builder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden
from tests.rules.origins.programs import recorded
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict

EMBEDDING = "torch.nn.modules.sparse.Embedding"
PARTS = {
    "embed.weight": EMBEDDING,
    "head.original.weight": LINEAR,
    "head.copy.weight": LINEAR,
    "body.weight": LINEAR,
}


def saved_copy() -> list[Event]:
    """Two names share a parameter, and a third one begins as its copy and is trained."""
    builder = TraceBuilder().process().model("Net", PARTS, frozen=["Net.embed.weight"])
    tied = builder.parameters()["Net.embed.weight"]
    for event in [e for e in builder.events if isinstance(e, StateEvent)]:
        assert event.summary is not None
        if event.name == "Net.body.weight":
            continue
        summary = event.summary.replace(fingerprint="xxh3:0")
        identity = event.identity if "copy" in event.name else tied.identity
        builder.edit(event, summary=summary, identity=identity)
    builder.optimizer(names=["Net.head.copy.weight", "Net.body.weight"])
    return builder.steps(4, no_gradient=["Net.head.original.weight"]).build()


BROKEN = saved_copy()


def test_fires_after_two_updates(golden: Golden) -> None:
    finding = golden(fires("TC054", BROKEN))
    assert (finding.subject.variable, finding.first_step) == ("Net.head.copy.weight", 1)


class Words(nn.Module):
    def __init__(self, *, says: bool | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        if says is not None:
            self.config = SimpleNamespace(tie_word_embeddings=says)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embed(ids))
        return out


class Saved(nn.Module):
    """An adapter that trains a copy of a layer beside the original."""

    def __init__(self, original: nn.Linear) -> None:
        super().__init__()
        self.original, self.copy = original, copy.deepcopy(original)
        self.original.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.copy(x)
        return out


class Taught(nn.Module):
    """A model with its teacher in it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = tied()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.student(ids) - self.teacher(ids)  # type: ignore[no-any-return]


def tied(*, says: bool | None = None) -> Words:
    model = Words(says=says)
    model.head.weight = model.embed.weight
    return model


def equal(*, says: bool | None = None) -> Words:
    model = Words(says=says)
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
    return model


def adapted() -> Words:
    model = tied()
    model.head = Saved(model.head)  # type: ignore[assignment]
    return model


def train(model: nn.Module) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randint(0, 20, (8, 5))).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (adapted, "Words.head.copy.weight"),
        (lambda: equal(says=True), "Words.head.weight"),
    ],
)
def test_fires_on_copies(tmp_path: Path, make: Callable[[], nn.Module], name: str) -> None:
    finding = fires("TC054", recorded(tmp_path, lambda: train(make())))
    assert (finding.subject.variable, finding.first_step) == (name, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tied(says=True),
        lambda: equal(says=False),  # untied on purpose, from one initialization
        equal,
        lambda: Words(says=True),  # says it, and never was
        Taught,
    ],
    ids=["tied", "untied", "unknown", "different", "teacher"],
)
def test_quiet_on_healthy_models(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    events = recorded(tmp_path, lambda: train(make()))
    assert quiet("TC054", events) is Verdict.NOT_TRIGGERED
