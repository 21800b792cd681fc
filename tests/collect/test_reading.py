"""Nobody sees us read: no class of tensors, modules, data or optimizers, no mode, and no graph."""

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
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import traincheck.collect
from tests.collect.recording import recording
from traincheck.api import make_engine
from traincheck.collect.session.attach import WatchedObjects, attach
from traincheck.collect.tensors.reading import (
    as_plain,
    detached,
    items_of,
    named_modules,
    named_tensors,
    own,
    real,
    sequence_of,
    state_of,
)
from traincheck.config import Config
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import SUBJECTS, MetricRequest, MonitorView

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


# -- classes of the program: nothing that they define runs because of us


def hooked(base: type, *names: str, **attributes: Any) -> type:
    """A subclass that counts the calls of these methods, and of ``__getattribute__``."""

    def counting(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            see(base.__name__, name)
            if name == "__getattr__" and not hasattr(base, name):
                raise AttributeError(args[0])
            return getattr(super(made, self), name)(*args, **kwargs)

        method.__name__ = name
        return method

    def attribute(self: Any, name: str) -> Any:
        see(base.__name__, name)  # type: ignore[index]
        return super(made, self).__getattribute__(name)  # type: ignore[misc]

    made: Any = type(f"Hooked{base.__name__}", (base,), {n: counting(n) for n in names})
    made.__getattribute__ = attribute
    for name, value in attributes.items():
        setattr(made, name, value)
    return made  # type: ignore[no-any-return]


_WALKS = ("named_modules", "named_parameters", "named_buffers", "parameters", "children", "train")
Part: Any = hooked(nn.Sequential, "__getattr__", "__len__", "__iter__", "__repr__", *_WALKS)
Part.__hash__ = lambda self: see("module", "__hash__") or 1
Part.__eq__ = lambda self, other: see("module", "__eq__") or self is other
Part.config = property(lambda self: see("module", "config"))


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = torch.randn(24, 8), torch.randint(0, 3, (24,))

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Order(Sampler[int]):
    def __init__(self) -> None:
        self.order = torch.randperm(24).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class Result:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


_CONTAINER = ("__len__", "__iter__", "__getitem__", "__contains__")
Data: Any = hooked(Rows, "__len__", "__getitem__", "__getattr__", "__repr__", "__eq__")
Data.__hash__ = lambda self: see("dataset", "__hash__") or 2
Drawn: Any = hooked(Order, "__iter__", "__getattr__")
Batch: Any = hooked(dict, *_CONTAINER, "items", "keys", "values", "get", "__eq__", "__repr__")
Labels: Any = hooked(list, *_CONTAINER, "__eq__", "__repr__")
Answer: Any = hooked(Result, "__getattr__", "__eq__", "__repr__")
Optimizer: Any = hooked(torch.optim.SGD, "__getattr__", "__repr__", "__eq__")
Optimizer.__hash__ = lambda self: see("optimizer", "__hash__") or 3
Optimizer.lr = property(lambda self: see("optimizer", "lr"))
Schedule: Any = hooked(torch.optim.lr_scheduler.StepLR, "get_last_lr", "__eq__", "__repr__")
Rate: Any = hooked(float, "__float__", "__eq__", "__repr__", "__lt__", "__sub__")
Rate.__hash__ = lambda self: see("rate", "__hash__") or 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return Answer(self.head(self.part(x)))


def collate(samples: list[Any]) -> Any:
    x, y = zip(*samples)
    return Batch(x=torch.stack(x), y=Labels([torch.stack(y)]))


def of_objects(given: list[Any]) -> float:
    """Training with modules, data, an optimizer and a schedule of classes of the program."""
    torch.manual_seed(0)
    model, other = Net(), Part(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = Optimizer(model.parameters(), lr=Rate(0.1), momentum=0.9)
    schedule = Schedule(optimizer, 2)
    given += [model, optimizer]
    for batch in DataLoader(Data(), 4, sampler=Drawn(), collate_fn=collate):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]).logits, batch["y"][0])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        model(batch["x"])
    model.load_state_dict(model.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    inner = Optimizer(other.parameters(), lr=0.1)
    other(torch.randn(4, 8)).sum().backward()
    inner.step()
    other.eval()(torch.randn(4, 8))
    return float(loss)


class Dispatched(torch.Tensor):
    """A tensor with memory that sees each operator."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, data: torch.Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, data)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        see("dispatch", function)
        with torch._C._DisableTorchDispatch():
            found = function(*args, **(kwargs or {}))
        return tree_map(
            lambda t: cls(t) if type(t) is torch.Tensor and t.is_floating_point() else t, found
        )


class Computed(Dispatched):
    """One whose attributes are computed."""

    @property
    def shape(self):
        see("property", "shape")
        return super().shape

    def __len__(self):
        see("tensor", "__len__")
        return super().__len__()

    def __hash__(self):
        see("tensor", "__hash__")
        return id(self)

    def __eq__(self, other):
        see("tensor", "__eq__")
        return super().__eq__(other)


class Around(torch.Tensor):
    """A tensor without memory, whose sizes and device are asked of the program."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            dispatch_sizes_strides_policy="sizes",
            dispatch_device=True,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        see("around", function)
        inner = args[0].inner
        asked = {"size": inner.size, "stride": inner.stride, "dim": inner.dim}
        name = function.__name__.partition(".")[0].removeprefix("sym_")
        if name in asked:
            return asked[name]()
        if name == "device":
            return inner.device
        bare = tree_map(lambda t: t.inner if isinstance(t, cls) else t, args)
        return tree_map(
            lambda t: cls(t) if type(t) is torch.Tensor else t, function(*bare, **(kwargs or {}))
        )

    def __tensor_flatten__(self):
        see("around", "__tensor_flatten__")
        return ["inner"], None


def of_tensors(given: list[Any], kind: Any, mode: Any = nullcontext) -> float:
    """Training with parameters and inputs of a class of tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight = nn.Parameter(kind(model[0].weight.data))
    data = [(kind(torch.randn(8, 8)), torch.randint(0, 3, (8,))) for _ in range(3)]
    with mode():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        given += [model, optimizer]
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x)
        model.load_state_dict(model.state_dict())
        optimizer.load_state_dict(optimizer.state_dict())
    return float(loss)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))
        self.fixed = nn.Parameter(Around(torch.ones(4, 4)), requires_grad=False)
        self.register_buffer("table", Around(torch.ones(4, 4)))

    def forward(self, x: Any, scale: Any) -> Any:
        return self.bias * 2, self.table, x, scale


def of_wrappers(given: list[Any]) -> float:
    """Training with tensors that have no memory: to read them would end the process."""
    model = Passing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given += [model, optimizer]
    x, scale = Around(torch.ones(3, 4)), Around(torch.ones(()))
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x, scale)[0].sum()
        loss.backward()
        optimizer.step()
    model.eval()(x, scale)
    model.load_state_dict(model.state_dict())
    return float(loss)


class Everything(TorchDispatchMode):
    """Both modes at once."""

    def __enter__(self):
        self.other = Functions()
        self.other.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.other.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        see("dispatch mode", function)
        return function(*args, **(kwargs or {}))


PROGRAMS: dict[str, Callable[[list[Any]], float]] = {
    "objects": of_objects,
    "dispatched": lambda given: of_tensors(given, Dispatched),
    "computed": lambda given: of_tensors(given, Computed),
    "modes": lambda given: of_tensors(given, Dispatched, Everything),
    "wrappers": of_wrappers,
}
METRICS = MonitorView(
    requests=tuple(
        MetricRequest(on=on, statistics=("entropy" if on == "attention" else "rms",))
        for on in SUBJECTS
    )
)


def views() -> dict[str, dict[str, Any]]:
    rules = make_engine((), rules=True, config=Config()).needs
    compared = {"level": "deep", "view": "diff", "outputs": "all", "sketch": True}
    return {
        "default": {},
        "compared": {**compared, "checksums": "all"},
        "monitor": {"needs": Needs(), "monitor": METRICS.to_json()},
        "profile": {"needs": Needs(kinds=frozenset({"profile"})), "profile": (0, 3)},
        "run": {"needs": rules, "fold": True},
        "probe": {"needs": rules, "fold": True, "probe": True},
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_code_of_the_program_runs_because_of_us(tmp_path, program):
    PROGRAMS[program]([])  # what torch itself sets at first use is there before
    SEEN.clear()
    loss = PROGRAMS[program]([])
    plain = Counter(SEEN)
    assert sum(plain.values()) > 5
    for view, settings in views().items():
        with recording(tmp_path / view, **settings) as run:
            SEEN.clear()
            assert PROGRAMS[program]([]) == loss, view
            assert (view, SEEN - plain, plain - SEEN) == (view, Counter(), Counter())
        assert len(run.of("step")) >= 3 or view == "monitor"


def test_what_is_watched_runs_no_code_of_its_classes(tmp_path):
    with recording(tmp_path) as run:
        given: list[Any] = []
        of_objects(given)
        SEEN.clear()
        watched = WatchedObjects()
        watched.add_all(given, is_strict=True)
        attach(run.session, watched)
        assert not SEEN


def test_what_is_read_of_foreign_classes():
    tensor = Dispatched(torch.ones(2, 3))
    around, parameter = Around(torch.ones(2, 3)), nn.Parameter(tensor)
    SEEN.clear()
    assert type(as_plain(tensor)) is torch.Tensor
    assert (as_plain(around).shape, as_plain(around).data_ptr()) == (torch.Size((2, 3)), 0)
    assert as_plain(plain := torch.ones(2)) is plain
    assert as_plain(parameter).tolist() == [[1.0] * 3] * 2
    assert items_of(Batch(a=1, b=2), 1) == [("a", 1)]
    assert items_of([1]) is None
    assert sequence_of(Labels([1, 2, 3]), 2) == [1, 2]
    assert real(Rate(0.5)) == 0.5
    assert real("0.5") is None
    assert own(1) == {}
    assert not SEEN


def test_modules_are_walked_as_torch_does():
    tied = nn.Linear(2, 2)
    model = nn.Sequential(tied, nn.Sequential(nn.BatchNorm1d(2), tied), nn.Identity())
    assert list(named_modules(model)) == list(model.named_modules())
    for again in (False, True):
        expected = list(model.named_parameters(remove_duplicate=not again))
        assert [n for n, _ in named_tensors(model, again=again)] == [n for n, _ in expected]
    assert [n for n, _ in named_tensors(model, "_buffers")] == [n for n, _ in model.named_buffers()]
    model.append(model)  # a module within itself
    assert len(list(named_modules(model, again=True))) == 6


def test_the_state_of_a_parameter_is_found_by_identity():
    held, other = nn.Parameter(Computed(torch.ones(2))), nn.Parameter(Computed(torch.ones(2)))
    optimizer = torch.optim.SGD([held], lr=0.1)
    optimizer.state[held] = {"buffer": 1}
    SEEN.clear()
    assert state_of(optimizer, held) == {"buffer": 1}
    assert state_of(optimizer, other) is None
    assert not SEEN
