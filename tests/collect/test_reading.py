"""Nobody sees us read tensors: no subclass of tensors, no mode, and no graph."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import traincheck.collect
from tests.collect.recording import recording
from traincheck.collect.tensors.reading import detached

SEEN: Counter[tuple[str, str]] = Counter()


def see(who: str, function: Any) -> None:
    # By the bare name: methods of C that we replace have other qualified ones (docs/limits.md)
    SEEN[who, getattr(function, "__name__", str(function))] += 1


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        see("tensor", function)
        return super().__torch_function__(function, types, args, kwargs or {})


class LoggedParameter(nn.Parameter):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        see("parameter", function)
        return super().__torch_function__(function, types, args, kwargs or {})


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        see("function mode", function)
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        see("dispatch mode", function)
        return function(*args, **(kwargs or {}))


def program(mode: Callable[[], AbstractContextManager[Any]], *, subclass: bool) -> float:
    """Training with all that makes us look at tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    if subclass:
        model[0].weight = LoggedParameter(model[0].weight.data)
        model[3].bias = LoggedParameter(model[3].bias.data)
    data = DataLoader(TensorDataset(torch.randn(24, 8), torch.randint(0, 3, (24,))), 8)
    SEEN.clear()
    with mode():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for x, y in data:
            given = x.as_subclass(Logged) if subclass else x
            optimizer.zero_grad()
            loss = F.cross_entropy(model(given), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            model(given)
        model.load_state_dict(model.state_dict())
        optimizer.load_state_dict(optimizer.state_dict())
        torch.relu(given).view(2, 4, 8).transpose(0, 1)
        F.mse_loss(model(given), torch.zeros(8, 3))
    return float(loss)


@pytest.mark.parametrize(
    ("mode", "subclass"),
    [
        pytest.param(nullcontext, True, id="subclass"),
        pytest.param(Functions, False, id="function mode"),
        pytest.param(Functions, True, id="subclass in a function mode"),
        pytest.param(Operators, False, id="dispatch mode"),
    ],
)
def test_who_watches_torch_sees_the_program_alone(tmp_path, mode, subclass):
    plain = program(mode, subclass=subclass), dict(SEEN)
    assert len(plain[1]) > 3
    with recording(tmp_path) as run:
        assert program(mode, subclass=subclass) == plain[0]
        assert dict(SEEN) == plain[1]
    assert len([e for e in run.of("step") if e.complete]) == 3
    assert {e.role for e in run.of("state")} == {"parameter", "gradient", "buffer"} | (
        {"optimizer_state"}
    )


def test_a_mode_that_is_on_before_the_recording_sees_nothing_of_it(tmp_path):
    with Functions():
        F.relu(torch.ones(2))
        SEEN.clear()
        F.relu(torch.ones(2))
        plain = dict(SEEN)
        with recording(tmp_path) as run:
            SEEN.clear()
            F.relu(torch.ones(2))
            assert dict(SEEN) == plain
    (call,) = run.calls("torch.nn.functional.relu")
    assert call.args["input"]["shape"] == [2]


# What runs there reads no tensors, or is the program's own.
NO_READING = frozenset({"_aside", "_after_step", "_end", "enter_stage", "_wrap_call", "__call__"})


def entries(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Functions that say that code of ours runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            own = [n for n in ast.walk(node) if isinstance(n, ast.Assign)]
            if any(
                ".busy" in ast.unparse(n.targets[0]) and "True" in ast.unparse(n.value) for n in own
            ):
                yield node


def test_code_of_ours_runs_unseen_from_where_it_is_entered():
    folder = Path(traincheck.collect.__file__).parent
    found = [
        (path.name, function.name, "unseen()" in ast.unparse(function))
        for path in sorted(folder.rglob("*.py"))
        for function in entries(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 12
    assert [entry for entry in found if not entry[2] and entry[1] not in NO_READING] == []


def test_what_is_detached_is_read_in_place():
    weight = nn.Parameter(torch.ones(3))
    assert detached(weight).data_ptr() == weight.data_ptr()
    assert not detached(weight).requires_grad
    plain = torch.ones(3)
    assert detached(plain) is plain
