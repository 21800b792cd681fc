"""Read tensors of a program so that the program does not observe it.

A subclass with ``__torch_function__`` and a `TorchFunctionMode` see each attribute that is read and
each method that is called. So code of traincheck that handles tensors runs within `unseen` from its
entry: in functions that `wrap.guarded` calls, and wherever ``busy`` is set.

Gradients are never turned off for it, because a signal handler may run, and train, meanwhile.
Tensors are detached before they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Implemented in C: entered and left atomically, wherever a signal handler raises.
unseen = torch._C.DisableTorchFunction
# Whether a mode would see operations on plain tensors.
has_mode: Callable[[], bool] = getattr(
    torch._C, "_is_torch_function_mode_enabled", lambda: torch._C._len_torch_function_stack() > 0
)
# Number of active dispatch modes: they see the operators below functions.
modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
undispatched = torch._C._DisableTorchDispatch  # for plain tensors: a subclass may need its own


def item(tensor: torch.Tensor) -> Any:
    """The value of a plain tensor of one element."""
    if not modes():
        return tensor.item()
    with undispatched():
        return tensor.item()


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a tensor that shares its elements and is part of no graph."""
    return tensor.detach() if tensor.requires_grad else tensor
