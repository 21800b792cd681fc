"""Stable names for modules and tensors: root class, dotted path, no wrapper prefixes.

Identity is by object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

import torch

from traincheck.collect.tensors.reading import as_plain, is_lazy, is_opaque, table_of
from traincheck.collect.tensors.summarize import dotted
from traincheck.handlers import give_back

# Where a tensor is: its module by a weak reference, and its name there. Or a weak reference to the
# tensor itself, and None.
Slot: TypeAlias = tuple[Callable[[], Any], str | None]

Known = TypeVar("Known", bound=tuple[Any, ...])
FEW = 512  # objects, dead or alive, that a table may know before it looks for dead ones
WRAPPER_ATTRIBUTES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
_WRAPPER_CLASSES = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "OptimizedModule",
        "DeepSpeedEngine",
    }
)
_FSDP2_PREFIX = "FSDP"  # fully_shard replaces the class by a generated one: FSDPNet


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DDP, FSDP and compile wrappers."""
    while type(module).__name__ in _WRAPPER_CLASSES:
        for attribute in WRAPPER_ATTRIBUTES:
            inner = table_of(module, "_modules").get(attribute)
            if inner is not None:
                module = inner
                break
        else:
            return module
    return module


def class_of(module: torch.nn.Module) -> type:
    """The class as the user wrote it."""
    cls = type(module)
    above = cls.__mro__[1:]
    if cls.__name__.startswith(_FSDP2_PREFIX) and "FSDPModule" in {c.__name__ for c in above}:
        return next(c for c in above if c.__name__ != "FSDPModule")
    return cls


def is_gathered(module: torch.nn.Module) -> bool:
    """Whether ``fully_shard`` has replaced this module's shards by whole parameters."""
    state_of = getattr(type(module), "_get_fsdp_state", None)
    if state_of is None:
        return False
    try:
        state = state_of(module)
        groups = getattr(state, "_fsdp_param_groups", None)
        groups = [state._fsdp_param_group] if groups is None else groups
        return any(group is not None and not group.is_sharded for group in groups)
    except (AttributeError, AssertionError, RuntimeError) as error:
        give_back(error)  # of an unknown version
        return False


def clean_path(path: str) -> str:
    """A dotted path without the segments that wrappers insert."""
    return ".".join(part for part in path.split(".") if part not in _PREFIXES)


_PREFIXES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def walk(root: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Every distinct module below ``root`` with its clean path, without wrappers.

    name: the path of ``root``. A module costs little, and adds no object for the garbage collector:
    some models have 100,000 modules.
    """
    seen = {id(root)}
    yield name, root
    open_ones = [(name, iter(table_of(root, "_modules").items()))]
    while open_ones:
        path, children = open_ones[-1]
        for key, child in children:
            if child is None:
                continue
            if type(child).__name__ in _WRAPPER_CLASSES:
                child = unwrap(child)  # noqa: PLW2901  # its wrapper is of no interest
            if id(child) in seen:
                continue
            seen.add(id(child))
            if key in _PREFIXES or "." in key:
                below = ".".join(filter(None, (path, clean_path(key))))
            else:
                below = f"{path}.{key}" if path else key
            yield below, child
            if parts := table_of(child, "_modules"):
                open_ones.append((below, iter(parts.items())))
                break
        else:
            open_ones.pop()


class Parts:
    """The result of `walk` for repeated iteration, in two lists without tuples."""

    def __init__(self, root: torch.nn.Module, name: str) -> None:
        self._names: list[str] = []
        self._modules: list[torch.nn.Module] = []
        for path, module in walk(root, name):
            self._names.append(path)
            self._modules.append(module)

    def __iter__(self) -> Iterator[tuple[str, torch.nn.Module]]:
        return zip(self._names, self._modules)


def table(module: torch.nn.Module, name: str) -> dict[str, Any]:
    """Parameters, buffers or parts of a module as a dict; TorchScript returns another view."""
    members = table_of(module, name)
    if isinstance(members, dict):
        return members
    return {key: member for key, member in members.items() if member is not None}


def members(
    parts: Iterable[tuple[str, torch.nn.Module]],
) -> Iterator[tuple[str, Slot, torch.Tensor, str, bool]]:
    """Name of each parameter and buffer, where it is, class of its module, whether a buffer.

    parts: the result of `walk`.
    """
    for prefix, module in parts:
        tables = table(module, "_parameters"), table(module, "_buffers")
        if not any(tables):
            continue
        cls, owner = dotted(class_of(module)), weakref.ref(module)
        for held in tables:
            is_dict = any(held is table_of(module, name) for name in ("_parameters", "_buffers"))
            for key, tensor in list(held.items()):
                if tensor is not None:
                    slot: Slot = (owner, key) if is_dict else (weakref.ref(tensor), None)
                    yield f"{prefix}.{key}", slot, tensor, cls, held is tables[1]


def is_lent(parts: Iterable[tuple[str, torch.nn.Module]]) -> bool:
    """Whether other tensors replace the parameters temporarily.

    ``torch.func.functional_call`` does this; modules otherwise reject anything but a parameter
    under its name. After a forward without a backward, the parameters of a sharded model stay
    gathered: no optimizer holds them. parts: the result of `walk`.
    """
    return any(
        any(map(_stands_in, table(module, "_parameters").values())) or is_gathered(module)
        for _, module in parts
    )


def _stands_in(parameter: torch.Tensor | None) -> bool:
    if type(parameter) is torch.nn.Parameter or not is_readable(parameter):
        return False
    return not isinstance(parameter, torch.nn.Parameter)


def is_readable(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether there is a tensor, and its class does not compute its attributes."""
    return tensor is not None and not is_opaque(type(tensor))


def is_there(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor can be read: lazy ones do not exist yet, nested ones have no shape."""
    if not is_readable(tensor) or is_lazy(tensor):
        return False
    tensor = as_plain(tensor)
    return not (tensor.is_nested and tensor.layout is torch.strided)


class LiveModules:
    """The live modules. By id, not a WeakSet: the hash of a module may not work yet."""

    def __init__(self) -> None:
        self._modules: weakref.WeakValueDictionary[int, torch.nn.Module] = (
            weakref.WeakValueDictionary()
        )

    def add(self, module: torch.nn.Module) -> None:
        self._modules[id(module)] = module

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(list(self._modules.values()))


class ByObject(Generic[Known]):
    """Tuples that begin with a weak reference, by the id of its object. Forgets the dead ones.

    A program that makes models all the time must not grow. The caller compares the reference: ids
    are used again. Tables are read in each call, so `get` is that of a dict itself.
    """

    __slots__ = ("_most", "get", "table")

    def __init__(self) -> None:
        self.table: dict[int, Known] = {}
        self.get = self.table.get
        self._most = FEW

    def keep(self, thing: Any, known: Known) -> None:
        """Store what is known about an object."""
        table = self.table
        if len(table) >= self._most:
            for key, old in list(table.items()):
                if old[0]() is None and table.get(key) is old:
                    del table[key]
            self._most = max(FEW, 2 * len(table))
        table[id(thing)] = known


class Identities:
    """Small numbers for objects, unique in the process even if memory is reused."""

    def __init__(self) -> None:
        self._known = ByObject[tuple[weakref.ref[Any], int]]()
        self._next = 1

    def of(self, thing: Any) -> int:
        found = self._known.get(id(thing))
        if found is not None and found[0]() is thing:
            return found[1]
        number = self._next
        self._next = number + 1
        self._known.keep(thing, (weakref.ref(thing), number))
        return number


class ModelNames:
    """``Net``, and ``Net#2`` for a second live root of the same class."""

    def __init__(self) -> None:
        self._holders: dict[str, weakref.ref[torch.nn.Module]] = {}
        self._known = ByObject[tuple[weakref.ref[torch.nn.Module], str]]()

    def name(self, module: torch.nn.Module) -> str:
        """The name of this root: its present one, or the first free one."""
        known = self._known.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        base = class_of(module).__name__
        name = base
        number = 1
        while (holder := self._holders.get(name)) is not None and holder() is not None:
            number += 1
            name = f"{base}#{number}"
        self._holders[name] = weakref.ref(module)
        self._known.keep(module, (self._holders[name], name))
        return name
