"""What is kept of arguments and results: JSON, bounded, and without calling the user's code."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections import OrderedDict, UserDict, defaultdict, namedtuple

import numpy
import orjson
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from traincheck.collect.masking import known_by
from traincheck.collect.tensors import summarize as module
from traincheck.collect.tensors.summarize import (
    MAX_DEPTH,
    MAX_ITEMS,
    dotted,
    dumps,
    encode,
    number,
    summarize,
)
from traincheck.schema.values import is_tensor, tensor_summary


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    logits: object


class Tagged(torch.Tensor):
    pass


class Number(int):
    pass


def function(x):
    return x


def kept(value):
    """What a reader of the trace gets."""
    return json.loads(encode(value))


TENSOR = {"dtype": "float32", "shape": [2, 3], "device": "cpu"}
VALUES = [
    (None, None),
    (True, True),
    (False, False),
    (3, 3),
    (-(1 << 63), -(1 << 63)),
    (1 << 63, str(1 << 63)),
    (10**40, str(10**40)),
    (0.5, 0.5),
    (float("nan"), "nan"),
    (float("inf"), "inf"),
    (-float("inf"), "-inf"),
    (1 + 2j, "(1+2j)"),
    ("text", "text"),
    ("x" * 500, known_by("x" * 500)),
    ([1, "a", None], [1, known_by("a"), None]),
    ({"token": "a", "n": "mean"}, {"dict": {"token": "<masked>", "n": "mean"}}),
    ((1, 2), [1, 2]),
    (torch.Size([2, 3]), [2, 3]),
    (Pair(1, 2), [1, 2]),
    (list(range(20)), [*range(MAX_ITEMS), f"... {20 - MAX_ITEMS} more"]),
    ({"a": 1}, {"dict": {"a": 1}}),
    ({1: "a", None: "b"}, {"dict": {"1": "a", "None": "b"}}),
    (OrderedDict(a=1), {"dict": {"a": 1}}),
    ({Pair(1, 2): 1}, {"dict": {f"{__name__}.Pair": 1}}),
    ([].append, {"name": "builtins.list.append"}),
    (str.upper, {"name": "builtins.str.upper"}),
    (defaultdict(list, a=1), {"dict": {"a": 1}}),
    (torch.float16, {"name": "torch.float16"}),
    (torch.device("cpu"), {"name": "cpu"}),
    (nn.Linear, {"name": "torch.nn.modules.linear.Linear"}),
    (function, {"name": f"{__name__}.function"}),
    (len, {"name": "builtins.len"}),
    (nn.ReLU(), {"type": "torch.nn.modules.activation.ReLU"}),
    (Output(1), {"type": f"{__name__}.Output"}),
    (UserDict(a=1), {"type": "collections.UserDict"}),
    (object(), {"type": "builtins.object"}),
    (b"bytes", {"type": "builtins.bytes"}),
    ({1, 2}, {"type": "builtins.set"}),
    (range(3), {"type": "builtins.range"}),
    (Ellipsis, {"type": "builtins.ellipsis"}),
    (slice(0, 1), {"type": "builtins.slice"}),
    (Colour.RED, "Colour.RED"),
    (Level.HIGH, "Level.HIGH"),
    (torch.zeros(2, 3), TENSOR),
    (torch.zeros(2, 3, requires_grad=True), {**TENSOR, "requires_grad": True}),
    (nn.Parameter(torch.zeros(2, 3)), {**TENSOR, "requires_grad": True}),
    (torch.zeros(2, 3).as_subclass(Tagged), TENSOR),
    ([torch.zeros(2, 3)], [TENSOR]),
    ({"x": torch.zeros(2, 3)}, {"dict": {"x": TENSOR}}),
    (torch.empty(2, 3, device="meta"), {**TENSOR, "device": "meta"}),
    (torch.zeros(0, dtype=torch.bool), {"dtype": "bool", "shape": [0], "device": "cpu"}),
    (torch.tensor(1.5), {"dtype": "float32", "shape": [], "device": "cpu", "value": 1.5}),
    (torch.tensor(3), {"dtype": "int64", "shape": [], "device": "cpu", "value": 3}),
    (torch.tensor(True), {"dtype": "bool", "shape": [], "device": "cpu", "value": True}),
    (torch.tensor(math.nan), {"dtype": "float32", "shape": [], "device": "cpu", "value": "nan"}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=lambda v: type(v).__name__)
def test_what_is_kept(value, expected):
    found = kept(value)
    assert found == expected
    assert type(found) is type(expected)
    assert kept(value) == expected  # the second time, from the cache
    assert orjson.loads(orjson.dumps(summarize(value))) == expected


def test_a_tensor_reads_back():
    summary = tensor_summary(kept(torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)))
    assert (summary.dtype, summary.shape, summary.requires_grad) == ("bfloat16", (2, 3), True)
    assert not is_tensor(kept([1]))


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}, lambda v: (v,)])
def test_deep_nesting_is_cut(wrap):
    value = 1
    for _ in range(5000):
        value = wrap(value)
    text = encode(value)
    assert len(text) < 200
    assert b'"type"' in text
    shallow = 1
    for _ in range(MAX_DEPTH):
        shallow = wrap(shallow)
    assert b'"type"' not in encode(shallow)


def test_a_list_that_holds_itself():
    endless = []
    endless.append(endless)
    assert kept(endless) == [[[{"type": "builtins.list"}]]]


class HostileError(Exception):
    pass


class Hostile:
    """Every way of asking it something fails."""

    def __getattribute__(self, name):
        raise HostileError(name)

    def _refuse(self, *args):
        raise HostileError

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __eq__ = __call__ = __getitem__ = _refuse
    __hash__ = __index__ = __float__ = _refuse


class HostileList(list):
    def _refuse(self, *args):
        raise HostileError

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = _refuse


class HostileTuple(tuple):
    __slots__ = ()

    def _refuse(self, *args):
        raise HostileError

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = __bool__ = _refuse


class HostileDict(dict):
    def _refuse(self, *args):
        raise HostileError

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = keys = items = values = _refuse


class HostileMeta(type):
    def __repr__(cls):
        raise HostileError

    def __getattribute__(cls, name):
        if name in ("__module__", "__qualname__"):
            return type.__getattribute__(cls, name)
        raise HostileError(name)


def of_hostile_class():
    return type.__call__(HostileMeta("OfHostileClass", (), {}))


@pytest.mark.parametrize(
    ("make", "name"),
    [(Hostile, "Hostile"), (HostileList, "HostileList"), (of_hostile_class, "OfHostileClass")],
)
def test_code_of_the_user_is_not_called(make, name):
    value = make()
    expected = {"type": f"{__name__}.{name}"}
    assert kept(value) == expected
    assert kept([value]) == [expected]
    assert kept({"k": value}) == {"dict": {"k": expected}}


def test_containers_of_the_users_own_kind_are_read_without_their_methods():
    assert kept(HostileTuple((1, 2))) == [1, 2]
    assert kept(HostileDict(a=1)) == {"dict": {"a": 1}}
    assert kept({Hostile: 1}) == {"dict": {"builtins.type": 1}}


def test_a_lazy_object_is_not_woken():
    """Objects that make attributes up on the fly: mocks, lazy modules."""
    asked = []

    class Lazy:
        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

        def __call__(self):
            asked.append("call")

    assert kept(Lazy()) == {"type": f"{__name__}.{dotted(Lazy).removeprefix(__name__ + '.')}"}
    assert asked == []


def test_a_number_of_the_users_own_kind():
    assert kept(Number(3)) in (3, {"type": f"{__name__}.Number"})


def test_sizes_that_are_symbols():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment):
        symbol = environment.create_unbacked_symint()
        assert isinstance(symbol, torch.SymInt)
        found = kept(torch.empty(symbol, 3))
        again = kept(symbol)
    assert found == {
        "dtype": "float32",
        "shape": [],
        "type": "torch._subclasses.fake_tensor.FakeTensor",
    }
    assert again == {"type": "torch.SymInt"}


def test_tensors_inside_a_transform():
    """Inside vmap and grad a tensor may have no readable value."""
    found = []

    def inside(x):
        found.append(kept(x))
        return x.sum()

    torch.func.vmap(inside)(torch.zeros(3, 2))
    torch.func.grad(inside)(torch.tensor(1.0))
    torch.func.vmap(inside)(torch.zeros(3))
    assert all(is_tensor(f) for f in found)
    assert [f["shape"] for f in found] == [[2], [], []]


def test_nested_and_sparse_tensors():
    sparse = torch.eye(3).to_sparse()
    assert kept(sparse)["shape"] == [3, 3]
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert kept(nested) == {"dtype": "float32", "shape": [], "type": dotted(type(nested))}


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_CACHED", 10)
    module._cache.clear()
    for size in range(200):
        assert kept(torch.empty(size, 1, device="meta"))["shape"] == [size, 1]
        assert len(module._cache) <= 10


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), (1 << 64, str(1 << 64)), (math.inf, "inf"), (1j, "1j")]
)
def test_numbers(value, expected):
    assert number(value) == expected


def test_text_that_is_not_utf8_and_numbers_of_numpy_are_told():
    odd = os.fsdecode(b"ck\xff.pt")
    found = orjson.loads(dumps({odd: [odd, numpy.float32(0.5), 1 << 70], 2: numpy.int64(3)}))
    assert found == {"ck\\udcff.pt": ["ck\\udcff.pt", 0.5, str(1 << 70)], "2": 3}
    assert encode(odd) == orjson.dumps(known_by(odd))
