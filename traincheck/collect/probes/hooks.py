"""Hooks of tensors that replace a gradient, such as those of implicit differentiation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import hidden


class TensorHooks:
    """Finds them in a copy of the process.

    Attributes:
        place: line that registered the first hook that replaced a gradient; empty if none did.
    """

    def __init__(self) -> None:
        self.place = ""

    def install(self) -> None:
        """Follow new hooks; for a copy of the process, which ends anyway."""
        original: Any = torch.Tensor.register_hook

        @hidden
        def register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
            place = outside(sys._getframe(1)) or "unknown line"

            @hidden
            def called(grad: torch.Tensor) -> Any:
                result = hook(grad)
                if result is not None and not self.place and not _is_same(result, grad):
                    self.place = place
                return result

            return original(tensor, called)

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]


def _is_same(first: Any, second: torch.Tensor) -> bool:
    return isinstance(first, torch.Tensor) and bool(torch.equal(first, second))
