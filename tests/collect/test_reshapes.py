"""Views are recorded when they tear a dim apart; nothing else of them changes."""

from __future__ import annotations

import pickle

import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from tests.collect.recording import recording
from traincheck.schema.claims import Needs
from traincheck.schema.torch_api import RESHAPES

VIEW = torch.Tensor.view


def calls(run):
    return [e for e in run.events if e.kind == "call" and e.api in RESHAPES]


def exchange(x: torch.Tensor) -> torch.Tensor:
    return x.view(3, 2, 4)


class Subclass(torch.Tensor):
    pass


def test_what_tears_is_recorded_with_its_place(tmp_path):
    with recording(tmp_path) as run:
        x = torch.zeros(2, 3, 4)
        exchange(x)
        x.reshape([3, 2, 4])
        torch.reshape(x, (3, 2, 4))
        with torch.no_grad():
            exchange(x)
    found = calls(run)
    view, reshape, function, quiet = found
    assert [e.api for e in found[:3]] == [
        "torch.Tensor.view",
        "torch.Tensor.reshape",
        "torch.reshape",
    ]
    assert view.args["0"]["shape"] == [2, 3, 4]
    assert view.result["shape"] == [3, 2, 4]
    assert view.where.partition(":")[0] == __file__
    assert [e.grad_enabled for e in (view, quiet)] == [True, False]
    assert reshape.span != function.span


def test_what_merges_or_splits_is_not(tmp_path):
    with recording(tmp_path) as run:
        x = torch.zeros(2, 3, 4)
        x.view(6, 4)
        x.view(2, -1)
        x.view(2, 3, 2, 2)
        x.view(torch.int32)
        torch.reshape(input=x, shape=(3, 2, 4))
        x.as_subclass(Subclass).view(3, 2, 4)
        F.multi_head_attention_forward(
            *(torch.zeros(5, 3, 4),) * 3, 4, 2, torch.zeros(12, 4), None, None, None, False, 0.0,
            torch.zeros(4, 4), None,
        )  # fmt: skip
    assert calls(run) == []


def test_the_methods_are_inherited_again_afterwards(tmp_path):
    with recording(tmp_path):
        assert torch.Tensor.view is not VIEW
        assert pickle.loads(pickle.dumps(torch.reshape)) is torch.reshape
    assert {"view", "reshape"}.isdisjoint(vars(torch.Tensor))


def test_selective_recording_leaves_them_alone(tmp_path):
    with recording(tmp_path, needs=Needs(kinds=frozenset({"step"}))):
        assert torch.Tensor.view is VIEW


def test_a_compiled_function_neither_breaks_nor_is_compiled_again(tmp_path):
    counter = CompileCounter()
    with recording(tmp_path):
        compiled = torch.compile(exchange, backend=counter, fullgraph=True)
        x = torch.arange(24.0).view(2, 3, 4)
        assert torch.equal(compiled(x), exchange(x))
        compiled(x)
    compiled(x)
    assert counter.frame_count == 1
    torch._dynamo.reset()
