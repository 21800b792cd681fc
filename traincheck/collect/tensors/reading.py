"""Read tensors and objects of a program so that the program does not observe it.

No code of the program runs because something is read. What its classes could define:

- ``__torch_function__`` of a subclass or a mode sees each attribute that is read and each method
  that is called. So code of traincheck that handles tensors runs within `unseen` from its entry: in
  functions that `guarded` calls, and wherever ``busy`` is set.
- ``__torch_dispatch__``, properties and ``__getattribute__`` of a subclass: see `is_foreign`. What
  is read of such a tensor is read of `as_plain`.
- ``__getattribute__``, ``__getattr__``, properties and methods of modules, optimizers, datasets and
  other objects: attributes are read with `own`, kinds tested with `is_a`, parts and tensors of a
  module found with `named_modules` and `named_tensors`, those of an optimizer with `groups_of` and
  `states_of`. Objects are compared by identity; their hash may be code of the program, too.

Gradients are never turned off for it, because a signal handler may run, and train, meanwhile.
Tensors are detached before they are read.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

import torch
from torch.nn import parameter as parameters

from traincheck.collect.tensors.devices import can_capture, is_remote
from traincheck.handlers import give_back
from traincheck.schema.observations.processes import Layout

# Implemented in C: entered and left atomically, wherever a signal handler raises.
unseen = torch._C.DisableTorchFunction
# Whether a mode would see operations on plain tensors.
has_mode: Callable[[], bool] = getattr(
    torch._C, "_is_torch_function_mode_enabled", lambda: torch._C._len_torch_function_stack() > 0
)
# Number of active dispatch modes: they see the operators below functions.
modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
undispatched = torch._C._DisableTorchDispatch  # for plain tensors: a subclass may need its own

_T = TypeVar("_T")
PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_attribute = object.__getattribute__
_alias: Callable[[type, torch.Tensor], torch.Tensor] = torch.Tensor._make_subclass
_base: Any = torch._C.TensorBase
_LAZY: type = parameters.UninitializedTensorMixin  # type: ignore[attr-defined]
_requires_grad: Callable[[torch.Tensor], bool] = _base.requires_grad.__get__
_grad: Callable[[torch.Tensor], torch.Tensor | None] = _base.grad.__get__
_DISPATCH = frozenset({"__torch_dispatch__"})
# With one of these in its class, an attribute of a tensor may be computed by the program.
_COMPUTED = frozenset({"__getattribute__", "__getattr__"}) | {
    name for name in dir(torch.Tensor) if not name.startswith("__")
}


def item(tensor: torch.Tensor) -> Any:
    """The value of a plain tensor of one element."""
    if not modes():
        return tensor.item()
    with undispatched():
        return tensor.item()


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a tensor that shares its elements and is part of no graph."""
    return tensor.data if tensor.requires_grad else tensor  # two thirds of the time of `detach`


# -- tensors of classes of the program


def _defines(kind: type, names: frozenset[str]) -> bool:
    """Whether a class of the program defines one of these names for its tensors."""
    for cls in kind.__mro__:
        if cls is torch.Tensor or cls is object:
            return False
        if not names.isdisjoint(cls.__dict__) and not cls.__module__.startswith("torch."):
            return True
    return False


def is_opaque(kind: type) -> bool:
    """Whether the program computes attributes of tensors of this class."""
    return kind not in PLAIN_TYPES and _defines(kind, _COMPUTED)


def is_foreign(kind: type) -> bool:
    """Whether reading a tensor of this class would run code of the program, even in `unseen`."""
    return kind not in PLAIN_TYPES and (_defines(kind, _DISPATCH) or _defines(kind, _COMPUTED))


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; if it is foreign, a plain one with the same memory, sizes and device.

    It is part of no graph. Of a tensor that consists of others, it has no memory: its address is 0,
    and to read its elements would end the process.
    """
    if not is_foreign(type(tensor)):
        return tensor
    with unseen(), undispatched():
        return _alias(torch.Tensor, tensor)


def requires_grad(tensor: torch.Tensor) -> bool:
    """The flag of a tensor of any class."""
    return _requires_grad(tensor)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a tensor of any class."""
    return _grad(parameter)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter has no shape yet."""
    return issubclass(type(tensor), _LAZY)


# -- objects


def own(thing: Any) -> dict[str, Any]:
    """The attributes of an object itself, not those of its class."""
    try:
        found: dict[str, Any] = _attribute(thing, "__dict__")
    except AttributeError as error:  # it has slots, or none
        give_back(error)
        return {}
    return found


def is_a(value: Any, kinds: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """``isinstance``, which would also ask the value for its class."""
    return issubclass(type(value), kinds)


def table_of(module: torch.nn.Module, name: str) -> Any:
    """``_parameters``, ``_buffers`` or ``_modules`` of a module."""
    found = own(module).get(name)
    if found is None:  # before its ``__init__``; TorchScript computes it
        found = getattr(module, name) if is_a(module, torch.jit.ScriptModule) else {}
    return found


def items_of(value: Any, most: int | None = None) -> list[tuple[Any, Any]] | None:
    """The first keys and values of a dict, or of a mapping around one; None for others."""
    kind = type(value)
    if kind is list or kind is tuple:  # as most batches; what follows is slow
        return None
    if not issubclass(kind, dict):
        if issubclass(kind, MappingProxyType):
            return list(itertools.islice(value.items(), most))
        value = own(value).get("data") if issubclass(kind, Mapping) else None  # a UserDict
        if not issubclass(type(value), dict):
            return None
    return list(itertools.islice(dict.items(value), most))


def sequence_of(value: Any, most: int | None = None) -> Any:
    """The first items of a list or tuple; None for others."""
    kind = list if issubclass(type(value), list) else tuple
    return kind.__getitem__(value, slice(most)) if issubclass(type(value), kind) else None


def real(value: Any) -> float | None:
    """A number of Python, or of a library, as a float; None for others."""
    kind = type(value)
    for base in (float, int):
        if issubclass(kind, base):
            return float(base.__float__(value))
    is_known = kind.__module__.partition(".")[0] in _NUMBERS
    return float(value) if is_known and issubclass(kind, numbers.Real) else None


_NUMBERS = frozenset({"numpy", "fractions", "torch"})


def is_training(module: torch.nn.Module) -> bool:
    """The mode of a module; one without a mode is taken for training."""
    mode = _attribute(module, "__dict__").get("training")  # `own`, inlined
    if mode is True:
        return True
    if mode is None and is_a(module, torch.jit.ScriptModule):
        mode = module.training
    return mode is None or bool(mode)


def has_plain_mode(kind: type[torch.nn.Module]) -> bool:
    """Whether ``training`` of modules of this class can be read as an attribute."""
    getter = getattr(kind, "__getattr__", None)
    return (
        kind.__getattribute__ is _attribute
        and (getter is torch.nn.Module.__getattr__ or issubclass(kind, torch.jit.ScriptModule))
        and not any("training" in cls.__dict__ for cls in kind.__mro__)
    )


def named_modules(
    module: torch.nn.Module, path: str = "", *, again: bool = False
) -> Iterator[tuple[str, torch.nn.Module]]:
    """A module and those below it, with their paths. again: under each of their names."""
    seen = {id(module)}
    yield path, module
    open_ones = [(path, module, iter(_parts(module)))]
    while open_ones:
        prefix, parent, children = open_ones[-1]
        for key, child in children:
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            below = f"{prefix}.{key}" if prefix else key
            yield below, child
            open_ones.append((below, child, iter(_parts(child))))
            break
        else:
            open_ones.pop()
            if again:
                seen.discard(id(parent))


def _parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module | None]]:
    return list(table_of(module, "_modules").items())


def modules_in(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """A module and those below it."""
    return (part for _, part in named_modules(module))


def named_tensors(
    module: torch.nn.Module, table: str = "_parameters", *, again: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters below a module; with the table ``_buffers``, the buffers.

    again: tied ones come under each of their names.
    """
    seen: set[int] = set()
    for path, part in named_modules(module, again=again):
        for key, tensor in list(table_of(part, table).items()):
            if tensor is not None and (again or id(tensor) not in seen):
                seen.add(id(tensor))
                yield f"{path}.{key}" if path else key, tensor


def tensors_in(module: torch.nn.Module, table: str = "_parameters") -> Iterator[torch.Tensor]:
    """The parameters, or the buffers, below a module."""
    return (tensor for _, tensor in named_tensors(module, table))


def has_groups(thing: Any) -> bool:
    """Whether an object has parameter groups: an optimizer, or what wraps one."""
    return "param_groups" in own(thing) or hasattr(type(thing), "param_groups")


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer. One that wraps another may compute them."""
    groups: list[dict[str, Any]] | None = own(optimizer).get("param_groups")
    return optimizer.param_groups if groups is None else groups


def states_of(optimizer: Any) -> Mapping[torch.Tensor, Any]:
    """The state of an optimizer, by parameter."""
    states: Mapping[torch.Tensor, Any] | None = own(optimizer).get("state")
    return optimizer.state if states is None else states


def state_of(optimizer: Any, parameter: torch.Tensor) -> Any:
    """The state of one parameter. The hash of a parameter may be code of the program."""
    states = states_of(optimizer)
    if type(parameter) in PLAIN_TYPES:
        return states.get(parameter)
    return next((state for held, state in states.items() if held is parameter), None)


def local_of(tensor: Any) -> torch.Tensor | None:
    """This rank's part of a distributed tensor; None for any other."""
    if is_foreign(type(tensor)):
        return None
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else None


def layout_of(tensor: Any) -> Layout | None:
    """The layout of a distributed tensor; None if it has none, or not this rank in its mesh."""
    spec = getattr(tensor, "_spec", None)
    if spec is None:
        return None
    mesh, place = spec.mesh, spec.mesh.get_coordinate()
    if place is None:
        return None
    names = [_placement(placement) for placement in spec.placements]
    index = tuple(
        slice(None) if name == REPLICATE else at for name, at in zip(names, place, strict=True)
    )
    same = mesh.mesh[index].reshape(-1).tolist()
    dims = mesh.mesh_dim_names or ("",) * len(names)
    return Layout(tuple(dims), tuple(mesh.mesh.shape), tuple(names), tuple(sorted(same)))


REPLICATE = "replicate"


def _placement(placement: Any) -> str:
    if placement.is_replicate():
        return REPLICATE
    if placement.is_partial():
        return "partial"
    return f"shard {placement.dim}" if hasattr(placement, "dim") else type(placement).__name__


FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
LOW = 1 << 32  # nearly all allocations are above it; freed memory leaves an offset
_COUNTED = FLOATS | INTS
HALF = frozenset({torch.float16, torch.bfloat16})
# Inside torch.func. Reading its level creates a state that each node of a backward pass copies.
FUNC = getattr(getattr(torch._C, "DispatchKey", None), "FuncTorchDynamicLayerFrontMode", None)
is_included = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", lambda _: False)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor has memory.

    Sharding and offloading free the memory of a parameter and keep its shape. Reading it then ends
    the process.
    """
    try:
        if tensor.data_ptr() > LOW or not tensor.numel():
            return True
        storage = tensor.untyped_storage()
        return storage.nbytes() > 0 and storage.data_ptr() > 0  # a wrapper has a size alone
    except (RuntimeError, NotImplementedError) as error:  # inside torch.func: it represents others
        give_back(error)
        return False


def is_countable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements can be read without side effects."""
    if type(tensor) not in PLAIN_TYPES or tensor.dtype not in _COUNTED:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() == 0:
        return False
    if modes() or is_included(FUNC) or not (tensor.is_cpu or is_remote(tensor)):
        return False
    if tensor.data_ptr() <= LOW and not has_memory(tensor):
        return False
    return tensor.is_cpu or not can_capture()
