"""A reference model: its activations for the same input, without a trace in the training.

Its forward draws random numbers and may update statistics. Both are restored, so that training goes
on as if it had not been run, and the monitored model draws the same numbers after it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from traincheck.collect.monitor.module_hooks import ModuleHooks


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
        self._hooks = ModuleHooks(
            self.parts.items(), entered=self._entered, left=self._left, fault=fault
        )

    @property
    def is_running(self) -> bool:
        """Whether its forward runs now."""
        return self._restore is not None

    def attach(self) -> None:
        """Keep the activations of the calls that follow."""
        self._hooks.attach()

    def detach(self) -> None:
        """Stop that, and forget the activations."""
        self._hooks.detach()
        self._put_back()  # its forward may have raised
        self.clear()

    def next(self, name: str) -> tuple[Any, torch.Tensor | None]:
        """Result and first argument of the oldest call that is left under a name."""
        return _next(self.outputs, name), _next(self.inputs, name)

    def clear(self) -> None:
        """Forget the activations."""
        self.outputs.clear()
        self.inputs.clear()

    def run(self, like: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on the arguments of a call of the monitored one, in the same modes."""
        with torch.no_grad(), same_modes(self.module, like), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program, about its own forward
            try:
                self.module(*args, **kwargs)
            finally:
                self._put_back()

    def _entered(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if module is self.module:
            self._restore = contextlib.ExitStack()
            self._restore.enter_context(unchanged(self.module))
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
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with kept_random_state(devices_of(module)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def devices_of(module: torch.nn.Module) -> frozenset[torch.device]:
    """The devices other than the CPU that hold parameters of a module."""
    return frozenset(p.device for p in module.parameters() if p.is_cuda)


@contextlib.contextmanager
def kept_random_state(devices: frozenset[torch.device]) -> Iterator[None]:
    """Put the global generators of torch, Python and numpy, and of some devices back at the end."""
    state, of_python = torch.default_generator.get_state(), random.getstate()
    numpy = sys.modules.get("numpy.random")
    of_numpy = None if numpy is None else numpy.get_state()
    states = [(device, torch.cuda.get_rng_state(device)) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        random.setstate(of_python)
        if numpy is not None:
            numpy.set_state(of_numpy)
        for device, before in states:
            torch.cuda.set_rng_state(before, device)


@contextlib.contextmanager
def same_modes(module: torch.nn.Module, like: torch.nn.Module) -> Iterator[None]:
    """Give a module and its parts the training flags of another one for a while."""
    pairs = list(zip(module.modules(), like.modules()))
    before = [(part, part.training) for part, _ in pairs]
    for part, other in pairs:
        part.training = other.training
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode
