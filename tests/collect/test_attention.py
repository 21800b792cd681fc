"""Of attention is told what softmax and the product run over; the graph is let alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.collect.recording import Recording, needs_sizes, recording
from traincheck.collect.observers import attention_softmax
from traincheck.schema.claims import Needs
from traincheck.schema.observations.losses import AttentionSoftmax

Tensor = torch.Tensor
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
pytestmark = needs_sizes
HEADS, TIME, SIZE = 2, 6, 8


def told(run: Recording) -> list[tuple[object, ...]]:
    return [
        tuple(each.values())
        for mark in run.marks(AttentionSoftmax.text)
        for each in mark.data["weights"]
    ]


def usual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 2.0).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
    scores = (q @ k.mT).masked_fill(later, -1e9)
    return nn.functional.dropout(scores.softmax(-2), 0.1) @ v


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k), 1) @ v


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bijh", q, k)
    return torch.einsum("bijh,bjhd->bihd", scores.softmax(1), v).transpose(1, 2)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1).mT for x in (q, k, v))
    return torch.bmm(v, torch.bmm(k.mT, q).softmax(1)).mT.unflatten(0, (-1, HEADS))


def divided_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-2)
    return (weights / weights.sum(-1, keepdim=True)) @ v


def of_distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (-(q.unsqueeze(-2) - k.unsqueeze(-3)).pow(2).sum(-1)).softmax(-2) @ v


class Block(nn.Module):
    def __init__(self, weigh: Weigh) -> None:
        super().__init__()
        self.weigh, self.parts = weigh, nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        return x + self.weigh(q, k, v).transpose(1, 2).flatten(2)


def grads(weigh: Weigh) -> list[Tensor | None]:
    torch.manual_seed(0)
    block, x = Block(weigh), torch.randn(3, TIME, HEADS * SIZE)
    block(x).pow(2).mean().backward()
    return [p.grad for p in block.parameters()]


@pytest.mark.parametrize(
    ("weigh", "found"),
    [
        (usual, ([3, HEADS, TIME, TIME], 3, 2, 3)),
        (masked, ([3, HEADS, TIME, TIME], 2, 2, 3)),
        (over_heads, ([3, HEADS, TIME, TIME], 1, 2, 3)),
        (heads_last, ([3, TIME, TIME, HEADS], 1, 1, 2)),
        (keys_first, ([3 * HEADS, TIME, TIME], 1, 2, 1)),
    ],
)
def test_dims_are_those_of_what_softmax_gives(
    tmp_path: Path, weigh: Weigh, found: tuple[object, ...]
) -> None:
    plain = grads(weigh)
    with recording(tmp_path) as run:
        traced = grads(weigh)
    assert told(run) == [found]
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


@pytest.mark.parametrize("weigh", [divided_again, of_distances])
def test_nothing_is_told_of_other_weights(tmp_path: Path, weigh: Weigh) -> None:
    with recording(tmp_path) as run:
        grads(weigh)
    assert told(run) == []


def test_a_chain_of_states_is_no_attention(tmp_path: Path) -> None:
    transitions, state = nn.Parameter(torch.randn(TIME, TIME)), torch.rand(3, TIME)
    with recording(tmp_path) as run:
        (state @ transitions.softmax(-1)).log().sum().backward()
    assert told(run) == []


def test_a_layer_is_not_computed_once_more(tmp_path: Path) -> None:
    calls = []

    def weigh(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            calls.append(1)
            return masked(q, k, v)

        return checkpoint(inner, q, k, v, use_reentrant=False)

    with recording(tmp_path):
        grads(weigh)
    assert len(calls) == 2  # forward, and once in backward


def test_only_in_some_steps_and_up_to_so_many_nodes(tmp_path: Path, monkeypatch) -> None:
    block = Block(masked)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    with recording(tmp_path / "steps") as run:
        for _ in range(8):
            optimizer.zero_grad()
            block(torch.randn(3, TIME, HEADS * SIZE)).pow(2).mean().backward()
            optimizer.step()
    assert [mark.step for mark in run.marks(AttentionSoftmax.text)] == [0, 1, 2]
    monkeypatch.setattr(attention_softmax, "_MOST_NODES", 4)
    with recording(tmp_path / "nodes") as run:
        grads(masked)
    assert told(run) == []


@pytest.mark.parametrize(
    ("needs", "is_wanted"),
    [
        (None, True),
        (Needs(states=frozenset({"loss@attention"})), True),
        (Needs(states=frozenset({"loss@broadcast"})), False),
    ],
)
def test_only_where_it_is_wanted(tmp_path: Path, needs: Needs | None, is_wanted: bool) -> None:
    with recording(tmp_path, needs=needs) as run:
        grads(masked)
    assert bool(told(run)) is is_wanted


def test_a_failure_of_ours_is_counted(tmp_path: Path, monkeypatch) -> None:
    plain = grads(masked)
    monkeypatch.setattr(attention_softmax, "kind", lambda node: 1 / 0)
    with recording(tmp_path, must_be_whole=False) as run:
        traced = grads(masked)
    assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))
    assert "ZeroDivisionError" in run.marks("fault")[0].data["reason"]
