"""Names of modules: the same whatever wraps them; identity by object."""

from __future__ import annotations

import gc
import weakref
from collections.abc import ValuesView

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.tracking.naming import (
    ByObject,
    Identities,
    ModelNames,
    class_of,
    clean_path,
    unwrap,
    walk,
)
from traincheck.collect.tracking.tracked_model import Slots, TrackedModel

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # where torch 2.4 and 2.5 have it
    from torch.distributed._composable.fsdp import FSDPModule


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x))


class DistributedDataParallel(nn.Module):
    """Wraps as the real one does, without a process group."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class FullyShardedDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._fsdp_wrapped_module = module


class FSDPNet(FSDPModule, Net):
    """As fully_shard names the class that it makes on the fly."""

    __new__ = object.__new__


def compiled(module):
    return torch.compile(module, backend="eager")


PATHS = ["", "body", "body.0", "body.1", "head"]
WRAPPERS = {
    "ddp": DistributedDataParallel,
    "data parallel": nn.DataParallel,
    "fsdp": FullyShardedDataParallel,
    "compile": compiled,
    "ddp of compile": lambda m: DistributedDataParallel(compiled(m)),
    "compile of ddp": lambda m: compiled(DistributedDataParallel(m)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_looked_through(name):
    net = Net()
    assert unwrap(WRAPPERS[name](net)) is net
    assert unwrap(net) is net


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_part_has_the_path_it_had(name):
    net = Net()
    plain = {path: module for path, module in walk(net) if not path.startswith("body")}
    net.body = WRAPPERS[name](net.body)
    found = dict(walk(net))
    assert list(found) == PATHS
    assert all(found[path] is module for path, module in plain.items())


def test_a_module_of_the_users_called_module_keeps_its_name():
    net = Net()
    net.module = nn.Linear(1, 1)
    assert [path for path, _ in walk(net)] == [*PATHS, "module"]
    assert unwrap(net) is net


def test_segments_of_wrappers_are_taken_out():
    assert clean_path("_orig_mod.a._fsdp_wrapped_module.b") == "a.b"
    assert clean_path("a._checkpoint_wrapped_module.b") == "a.b"
    assert clean_path("a.module.b") == "a.module.b"


def test_class_as_the_user_wrote_it():
    assert class_of(Net()) is Net
    assert class_of(FSDPNet()) is Net

    class FSDPLike(nn.Module):
        """A user's class whose name happens to begin so."""

    assert class_of(FSDPLike()) is FSDPLike


def test_a_shared_part_is_walked_once_under_its_first_name():
    net = Net()
    net.again = net.head
    assert [path for path, _ in walk(net)] == PATHS


def test_a_cycle_ends():
    net = Net()
    net.body.append(net)
    paths = [path for path, _ in walk(net)]
    assert paths == PATHS


def test_a_missing_part_is_left_out():
    net = Net()
    net.head = None
    assert [path for path, _ in walk(net)] == PATHS[:-1]


def test_two_roots_of_one_class():
    names, one, two = ModelNames(), Net(), Net()
    assert [names.name(one), names.name(two), names.name(one)] == ["Net", "Net#2", "Net"]
    assert names.name(nn.Linear(1, 1)) == "Linear"


def test_a_replaced_root_has_the_name_of_the_dead_one():
    names, one = ModelNames(), Net()
    assert names.name(one) == "Net"
    alive = Net()
    assert names.name(alive) == "Net#2"
    del one
    gc.collect()
    new = Net()
    assert names.name(new) == "Net"
    assert names.name(alive) == "Net#2"


def test_identities_are_never_used_again():
    identities = Identities()
    tensor = torch.zeros(1)
    first = identities.of(tensor)
    assert identities.of(tensor) == first
    seen = {first}
    for _ in range(100):
        thing = torch.zeros(1)  # very likely where the one before was
        seen.add(identities.of(thing))
        del thing
    assert len(seen) == 101
    assert identities.of(tensor) == first


class Unregistered(nn.Module):
    """Makes modules in its forward; in one of them it keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        for _ in range(40):
            x = nn.Tanh()(x)
        self.calls += 1
        if self.calls == 12:
            self.kept = nn.Sigmoid()
        return self.kept(x) if self.calls > 11 else x


def test_modules_that_hang_nowhere_are_not_searched_for_each_time(tmp_path, monkeypatch):
    is_current, asked = TrackedModel.is_current, []
    monkeypatch.setattr(
        TrackedModel, "is_current", lambda self: asked.append(self) or is_current(self)
    )
    model, x = Unregistered(), torch.ones(2, requires_grad=True)
    with recording(tmp_path) as run:
        for step in range(14):
            if step == 10:
                asked.clear()
            model(x).sum().backward()
    assert len(asked) < 20, "two or three times in a forward"
    kept = [e.module for e in run.calls("torch.nn.modules.activation.Sigmoid.forward")]
    assert kept == ["Unregistered.kept"] * 3


def test_names_that_wrappers_leave_in_a_table_are_taken_out():
    net = Net()
    net._modules["_orig_mod"] = nn.Sequential(nn.ReLU())
    net._modules["a._fsdp_wrapped_module.b"] = nn.Identity()
    paths = [path for path, _ in walk(net, "Net")]
    assert paths == ["Net", *(f"Net.{path}" for path in PATHS[1:]), "Net", "Net.0", "Net.a.b"]
    assert [path for path, _ in walk(net)][-3:] == ["", "0", "a.b"]


class Table(dict):
    """A program's table of parts: it counts who lists it."""

    listed = 0

    def values(self) -> ValuesView[nn.Parameter | None]:
        type(self).listed += 1
        return super().values()


def test_tables_of_a_program_are_read_without_its_methods() -> None:
    net = Net()
    net._parameters = Table(net._parameters)
    root = TrackedModel(net, "Net")
    root.consists_of(walk(net, "Net"))
    assert root.is_current()
    assert not Table.listed
    net.other = nn.Parameter(torch.zeros(1))
    assert not root.is_current(), "there is another parameter"
    root.consists_of(walk(net, "Net"))
    net.__dict__["_parameters"] = list(net._parameters)
    assert not root.is_current(), "no dict any more: found, not raised"
    assert not Table.listed


def test_tensors_that_are_gone_are_none_and_the_others_stay_in_their_places() -> None:
    net = nn.Linear(2, 2)
    weight, bias = list(net.parameters())
    places = {name: ((weakref.ref(net), name), None) for name in ("weight", "bias")}
    slots = Slots("_parameters", places)
    assert [one is two for one, two in zip(slots.tensors(), (weight, bias))] == [True, True]
    del net._parameters["weight"]
    assert slots.tensors()[0] is None
    assert slots.tensors()[1] is bias
    net.__dict__["_parameters"] = [weight, bias]
    assert slots.tensors() == [None, None], "no dict any more"
    del net
    assert slots.tensors() == [None, None]


def test_a_table_by_object_forgets_dead_ones_and_keeps_live_ones() -> None:
    table = ByObject[tuple[weakref.ref[nn.Identity], int]]()
    live = [nn.Identity() for _ in range(400)]
    for place, thing in enumerate(live):
        table.keep(thing, (weakref.ref(thing), place))
    others = [nn.Identity() for _ in range(5000)]
    refs = [weakref.ref(thing) for thing in others]
    for ref in refs:
        thing = others.pop(0)
        table.keep(thing, (ref, -1))
    assert all(table.table[id(thing)][1] == place for place, thing in enumerate(live))
    assert len(table.table) <= 2 * len(live) + 1
