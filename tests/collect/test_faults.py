"""Whatever of ours fails, training goes on and computes what it would have computed."""

from __future__ import annotations

import copy
import importlib
import io
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import traincheck.collect
from traincheck.collect.launch.settings import Settings
from traincheck.collect.session.session import Session

# Each guards all it does or only makes an object: nothing in there can fail but itself.
GUARDS = frozenset(
    {
        "trace_writer.emitter.Emitter.__init__",
        "trace_writer.event_file.EventFile.__init__",
        "instruments.checkpoint._Before.__init__",
        "instruments.modules.Modules._add",
        "instruments.modules.Modules._enter_root",
        "instruments.modules.Modules._leave_root",
        "instruments.modules.Modules._record",
        "instruments.optimizers.Optimizers._enter",
        "instruments.optimizers.Optimizers._left",
        "instruments.optimizers.Optimizers.owner",
        "instruments.python_warnings.PythonWarnings._warned",
        "observers.datasets.EpochOrderObserver._after",
        "observers.datasets.EpochOrderObserver._before",
        "observers.import_hook.ImportHook.find_spec",
        "observers.hyperparameters._Old.__call__",  # does nothing
        "observers.loss_terms.LossTermObserver._guarded",
        "observers.operations.OperationObserver._module",
        "observers.state_dicts.StateDictObserver._remember",
        "moments.operations.Operations.__torch_function__",
        "moments.tensor_methods._Method.__call__",  # calls what is guarded
        "moments.tensor_methods._Method.__get__",
        "moments.updates.Updates._begin",
        "moments.updates.Updates._end",
        "moments.updates.Updates._tell",
        "trace_writer.pending_numbers.PendingNumbers.__init__",
        "context.diverged",
        "instruments.data._draw",
        "session.emitters.Emitters.make",
        "session.session.Session.emitter",
        "instruments._wrap._tell",
        "trace_writer.guard.attempt",
        "trace_writer.guard.guarded",
        "trace_writer.guard.observe",
        "trace_writer.guard.quietly",
        "trace_writer.guard.tell",
    }
)
PARTS = 3  # of the functions, so that several processes share them
# In processes that train nothing.
ELSEWHERE = ("launch.bootstrap", "launch.launcher", "launch.run_manifest")


def ours() -> Iterator[tuple[str, types.FunctionType]]:
    """All functions and methods of collect that run in a training process, by name."""
    package = traincheck.collect
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        short = info.name.removeprefix(f"{package.__name__}.")
        if not short.startswith(ELSEWHERE):
            for name, found in vars(importlib.import_module(info.name)).items():
                if getattr(found, "__module__", None) == info.name:
                    yield from _functions(f"{short}.{name}", found)


def _functions(name: str, found: Any) -> Iterator[tuple[str, types.FunctionType]]:
    if isinstance(found, type):
        for key, member in vars(found).items():
            yield from _functions(f"{name}.{key}", getattr(member, "fget", member))
    elif (
        isinstance(found, types.FunctionType)
        and found.__module__.startswith("traincheck.")  # not what enum gives its classes
        and not found.__code__.co_freevars
    ):
        yield name, found


def train() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    out = []
    for x, y in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        out.append(loss.item())
    model.eval()
    with torch.no_grad():
        out.append(model(data.tensors[0]).sum().item())
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    warnings.warn("a warning of the program's own", stacklevel=1)
    other = copy.deepcopy(model)
    F.mse_loss(torch.relu(other(data.tensors[0])), torch.zeros(16, 3)).backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    out += [float(p.detach().double().sum()) for p in other.parameters()]
    return [*out, torch.rand(1).item()]


def train_at_length() -> list[float]:
    """Most steps are like the one before, but not all."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    for epoch in range(3):
        for step, (x, y) in enumerate(DataLoader(data, 8, shuffle=True)):
            optimizer.zero_grad()
            if step == 6:
                model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if (epoch, step) != (1, 4):
                optimizer.step()
    return [*(float(p.detach().double().sum()) for p in model.parameters()), torch.rand(1).item()]


Train = Callable[[], "list[float]"]


def codes_used(train: Train, settings: Settings) -> set[types.CodeType]:
    """What training calls while it is recorded."""
    found: set[types.CodeType] = set()
    session = Session(settings)
    session.start()
    sys.setprofile(lambda frame, event, arg: found.add(frame.f_code))
    try:
        train()
    finally:
        sys.setprofile(None)
        session.stop()
    return found


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("broken")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("train", "every", "least"),
    [
        pytest.param(train, 1, 150, id="all"),
        pytest.param(train_at_length, 7, 100, id="some steps", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_of_ours_fails_training_goes_on(tmp_path, train, every, least, part):
    plain = train()
    settings = Settings(directory=str(tmp_path), run_id="test", every=every)
    used = codes_used(train, settings)
    tried = 0
    for number, (name, function) in enumerate(ours()):
        if number % PARTS != part or name in GUARDS or function.__code__ not in used:
            continue
        session = Session(settings)
        session.start()
        code, function.__code__ = function.__code__, broken.__code__
        try:
            assert train() == plain, name
        except RuntimeError as error:
            raise AssertionError(f"a failure in {name} reaches the program") from error
        finally:
            function.__code__ = code
            session.stop()
        tried += 1
    assert tried > least / PARTS  # else they are not found any more
