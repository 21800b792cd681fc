"""When probes are made, and whether a copy of the process is exact."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from traincheck.collect.probes import fork
from traincheck.collect.probes.batch import leaves
from traincheck.collect.tensors.devices import KIND, is_used
from traincheck.collect.tensors.reading import as_plain, modes, modules_in, own, tensors_in

STEPS = (3, 12)  # in which it is called, counted from 1
_MOST_KEYS = 16  # models and passes
_MOST_PASSES = 3  # backward passes of a step
_functorch: Any = getattr(torch._C, "_functorch", None)


class Plan:
    """Counts the steps in which something occurs, for each model and each pass.

    Args:
        steps: numbers of the steps in which it is probed, from 1.
    """

    def __init__(self, steps: Iterable[int] = STEPS) -> None:
        self._steps = frozenset(steps)
        self._counts: dict[tuple[int, int], list[Any]] = {}  # weak reference, last step, count

    def is_over(self, step: int | None) -> bool:
        """Whether all that is still called was probed as often as planned."""
        last = max(self._steps, default=0)
        counts = self._counts.values()
        waits = [step is None or at is None or step - at <= last for _, at, n in counts if n < last]
        return any(n >= last for _, _, n in counts) and not any(waits)

    def is_due(self, module: torch.nn.Module, number: int, step: int | None) -> bool:
        """A module is called. number: that of the pass that it begins; -1 for the module itself."""
        if number >= _MOST_PASSES:
            return False
        key = (id(module), number)
        known = self._counts.get(key)
        if known is None or known[0]() is not module:
            if len(self._counts) >= _MOST_KEYS and known is None:
                return False
            known = self._counts[key] = [weakref.ref(module), None, 0]
        if known[1] == step:
            return False
        known[1], known[2] = step, known[2] + 1
        return known[2] in self._steps


def obstacle(module: torch.nn.Module, args: Any, kwargs: Any) -> str:
    """Why no copy of this process would be exact, as a clause; empty if it would."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the process belongs to a process group"
    devices = {as_plain(tensor).device.type for tensor in tensors_in(module)}
    devices |= {as_plain(tensor).device.type for tensor in leaves((args, kwargs))}
    devices |= {KIND} if is_used() else set()
    for device in sorted(devices - {"cpu"}):
        return f"the process uses {device}, and cannot be copied"
    if any(map(_is_compiled, modules_in(module))):
        return "the model is compiled"
    if modes() or (_functorch is not None and _functorch.peek_interpreter_stack() is not None):
        return "a mode of torch or a transform of functions is active"
    return fork.obstacle()


def _is_compiled(module: torch.nn.Module) -> bool:
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or own(module).get("_compiled_call_impl") is not None
