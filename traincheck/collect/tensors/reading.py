"""Reading tensors of a program so that the program meets none of it.

A subclass with ``__torch_function__`` and a `TorchFunctionMode` see each attribute that is read and
each method that is called. So code of ours that holds tensors runs within `unseen`, from where it
is entered: in what `wrap.guarded` calls, and wherever ``busy`` is set.

Gradients are never turned off for it. A signal handler may run, and train, while we read: what is
read is detached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Made in C: entered and left as a whole, wherever a signal handler raises.
unseen = torch._C.DisableTorchFunction
# Whether a mode would see what is done with plain tensors.
has_mode: Callable[[], bool] = getattr(
    torch._C, "_is_torch_function_mode_enabled", lambda: torch._C._len_torch_function_stack() > 0
)
# How many dispatch modes are at work: they see the operators that run, below functions.
modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
undispatched = torch._C._DisableTorchDispatch  # for plain tensors: a subclass may need its own


def item(tensor: torch.Tensor) -> Any:
    """The value of a plain tensor of one element."""
    if not modes():
        return tensor.item()
    with undispatched():
        return tensor.item()


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or what shares its elements and is part of no graph."""
    return tensor.detach() if tensor.requires_grad else tensor
