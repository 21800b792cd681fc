"""A reference model: its activations for the same input, without a trace in the training.

Its forward draws random numbers and may update statistics. Both are restored, so that training goes
on as if it had not been run, and the monitored model draws the same numbers after it.
"""

from __future__ import annotations

import contextlib
import operator
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from traincheck.collect.monitor.module_hooks import ModuleHooks
from traincheck.collect.tensors.devices import MODULE, is_remote
from traincheck.collect.tensors.reading import (
    is_training,
    modules_in,
    requires_grad,
    table_of,
    tensors_in,
)

_takes_hooks: Callable[[], bool] = getattr(
    torch._C._autograd, "_saved_tensors_hooks_is_enabled", lambda: True
)

_HOLDING = frozenset({torch.Tensor, list, tuple, dict})
_TABLES = frozenset(vars(torch.nn.Module()))
_MOST_HELD, _MOST_DEPTH = 1024, 4


class Reference:
    """The activations of a reference model.

    Args:
        module: the model.
        named: name and module of its parts.
        fault: counts a failure of ours.
        offload: keep activations on the CPU.

    Attributes:
        module: the model.
        parts: its parts by name.
        outputs: name -> results of its calls, in order, that no call of the monitored one has used.
        inputs: name -> first arguments of these calls.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        named: Iterable[tuple[str, torch.nn.Module]],
        *,
        fault: Callable[[Exception], None],
        offload: bool = False,
    ) -> None:
        self.module = module
        self.parts = dict(named)
        self.outputs: dict[str, list[Any]] = {}
        self.inputs: dict[str, list[Any]] = {}
        self.keeps_inputs = False
        self._offload = offload
        self._restore: contextlib.ExitStack | None = None
        self._turns_grad_off = False
        self._hooks = ModuleHooks(
            self.parts.items(), entered=self._entered, left=self._left, fault=fault
        )

    @property
    def is_running(self) -> bool:
        """Whether its forward runs now."""
        return self._restore is not None

    def attach(self) -> None:
        """Keep the activations of the calls that follow."""
        self._hooks.attach(always=self.module)

    def detach(self) -> None:
        """Stop that, and forget the activations."""
        self._hooks.detach()
        self._turns_grad_off = False  # the program has done so if its forward was interrupted
        self._put_back()
        self.clear()

    def next(self, name: str) -> tuple[Any, torch.Tensor | None]:
        """Result and first argument of the oldest call that is left under a name."""
        return _next(self.outputs, name), _next(self.inputs, name)

    def clear(self) -> None:
        """Forget the activations."""
        self.outputs.clear()
        self.inputs.clear()

    def run(self, like: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on the arguments of a call of the monitored one, in the same modes.

        Also with gradients where that has them: some operations have another kernel without. Only
        detached copies of results are kept, so the graph is freed when the forward ends.
        """
        with same_modes(self.module, like), own_graph(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program, about its own forward
            try:
                self.module(*args, **kwargs)
            finally:
                self._put_back()
                _free_graphs(self.module)

    def _entered(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if module is self.module:
            self._restore = contextlib.ExitStack()
            self._restore.enter_context(unchanged(self.module))
            if not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                # The program runs it without gradients: kernels must be those of the model
                self._turns_grad_off = True
                torch.set_grad_enabled(True)
        if self.keeps_inputs and args and isinstance(args[0], torch.Tensor):
            self.inputs.setdefault(name, []).append(self._copied(args[0]))

    def _left(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        self.outputs.setdefault(name, []).append(_copy(result, self._copied))
        if module is self.module:
            if self._turns_grad_off:
                self._turns_grad_off = False
                torch.set_grad_enabled(False)
            self._put_back()

    def _put_back(self) -> None:
        """Restore what the forward has changed."""
        if self._restore is not None:
            self._restore.close()
            self._restore = None

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, as a later call may change the tensor in place."""
        copied = tensor.detach().clone()
        return copied.cpu() if self._offload else copied


def _next(found: dict[str, list[Any]], name: str) -> Any:
    left = found.get(name)
    return left.pop(0) if left else None


def _copy(value: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return copied(value)
    if isinstance(value, (tuple, list)):
        return [_copy(one, copied) for one in value]
    if isinstance(value, dict):
        return {key: _copy(one, copied) for key, one in value.items()}
    return None


@contextlib.contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Put random generators and the buffers of a module back at the end."""
    own = [
        (table, table.copy())
        for part in modules_in(module)
        if (table := table_of(part, "_buffers"))
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in tensors_in(module, "_buffers")]
    with kept_random_state(devices_of(module)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for now, then in own:  # a forward may have assigned others
                now.update(then)


def devices_of(module: torch.nn.Module) -> frozenset[torch.device]:
    """The devices other than the CPU that hold parameters of a module."""
    return frozenset(p.device for p in tensors_in(module) if is_remote(p))


@contextlib.contextmanager
def kept_random_state(devices: frozenset[torch.device]) -> Iterator[None]:
    """Put the global generators of torch, Python and numpy, and of some devices back at the end."""
    state, of_python = torch.default_generator.get_state(), random.getstate()
    numpy = sys.modules.get("numpy.random")
    of_numpy = None if numpy is None else numpy.get_state()
    states = [(device, MODULE.get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        random.setstate(of_python)
        if numpy is not None:
            numpy.set_state(of_numpy)
        for device, before in states:
            MODULE.set_rng_state(before, device)


@contextlib.contextmanager
def same_modes(module: torch.nn.Module, like: torch.nn.Module) -> Iterator[None]:
    """Give a module the flags of another one for a while: of training, and of its parameters."""
    pairs = list(zip(modules_in(module), modules_in(like)))
    modes = [(part, is_training(part)) for part, _ in pairs]
    grads = [(one, requires_grad(one)) for one in tensors_in(module, "_parameters")]
    for part, other in pairs:
        part.training = is_training(other)
    for (parameter, _), model in zip(grads, tensors_in(like, "_parameters")):
        parameter.requires_grad_(requires_grad(model))
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, needs_grad in grads:
            parameter.requires_grad_(needs_grad)


@contextlib.contextmanager
def own_graph() -> Iterator[None]:
    """Keep hooks of the program for saved tensors away from a graph of ours."""
    if not torch.is_grad_enabled() or not _takes_hooks():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _same):
        yield


def _free_graphs(module: torch.nn.Module) -> None:
    """Detach results that a forward has kept as attributes, or in containers of these."""
    for part in module.modules():
        held = vars(part)
        for key, value in list(held.items()):
            if type(value) in _HOLDING and key not in _TABLES:
                freed = _detached(value)
                if freed is not value:
                    held[key] = freed


def _detached(value: Any, depth: int = 0) -> Any:
    """Results without their graph; the value itself if it has none. No container is changed."""
    if type(value) is torch.Tensor:
        return value if value.grad_fn is None else value.detach()
    if type(value) not in _HOLDING or not value or len(value) > _MOST_HELD or depth > _MOST_DEPTH:
        return value
    items = list(value.values()) if type(value) is dict else list(value)
    freed = [_detached(item, depth + 1) for item in items]
    if all(map(operator.is_, items, freed)):
        return value
    return dict(zip(value, freed)) if type(value) is dict else type(value)(freed)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy outside of the graph of the program, that a forward may change in place.

    It requires gradients where the tensor does.
    """
    if not tensor.requires_grad:
        return tensor.detach().clone()
    with torch.enable_grad():
        return tensor.detach().requires_grad_().clone()  # not a leaf
