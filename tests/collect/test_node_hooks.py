"""Hooks on nodes see gradients, and do not shift the numbers of the program's handles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from tests.collect.recording import needs_sizes, recording
from traincheck.collect.tensors.loss_graph import before_node


@pytest.mark.parametrize("output", [0, 1, 2])
def test_the_gradient_of_an_output_is_seen(output: int) -> None:
    seen: list[float] = []
    parts = torch.ones(3, requires_grad=True).mul(2).unbind()
    before_node(parts[0].grad_fn, lambda gradient: seen.append(gradient.item()), output)
    sum((index + 1) * part for index, part in enumerate(parts)).backward()  # type: ignore[union-attr]
    assert seen == [output + 1]


def test_an_output_without_a_gradient_gives_none() -> None:
    seen: list[torch.Tensor | None] = []
    x = torch.ones(3, requires_grad=True)
    parts = x.mul(2).unbind()
    before_node(parts[0].grad_fn, seen.append, 1)
    parts[0].backward()  # type: ignore[no-untyped-call]
    assert seen == [None]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 0]


def test_hooks_of_the_program_stay_beside_ours() -> None:
    seen: list[str] = []
    x = torch.ones(3, requires_grad=True)
    loss = x.sum()
    loss.register_hook(lambda gradient: seen.append("theirs") or gradient * 2)  # type: ignore[func-returns-value,no-untyped-call]
    before_node(loss.grad_fn, lambda gradient: seen.append(f"ours {gradient.item()}"))
    assert loss.grad_fn is not None
    handle = loss.grad_fn.register_prehook(lambda gradients: seen.append("node"))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    handle.remove()
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen == ["theirs", "ours 2.0", "node", "theirs", "ours 2.0"]


@needs_sizes
def test_handles_of_the_program_have_the_numbers_that_they_would_have(tmp_path: Path) -> None:
    ids = torch.tensor([[1, 2, 0], [3, 4, 5]])
    first = RemovableHandle.next_id
    with recording(tmp_path) as run:
        model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Linear(4, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            logits = model(ids).flatten(0, 1)
            one, other = torch.stack([F.cross_entropy(logits, ids.flatten())] * 2).unbind()
            (one + 0.5 * other).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    texts = {event.text for event in run.of("mark")}
    assert {"loss terms", "label positions", "embedding rows"} <= texts
    assert RemovableHandle.next_id == first
