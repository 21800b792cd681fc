"""Hooks on nodes of the graph, which take no number of the program's handles.

``register_prehook`` makes a handle, and handles are numbered in order: those that the program makes
later would have other numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch


def before_node(node: Any, hook: Callable[[Any], None], output: int = 0) -> None:
    """Call ``hook`` with the gradient of an output of ``node``, before the node computes.

    The gradient is None if none arrives at this output.
    """
    carrier: Any = torch.empty(0, device="cpu")
    if output:  # the number is that of the tensor
        with torch.enable_grad():
            carrier = torch.empty(output + 1, device="cpu").requires_grad_().unbind()[output]
    carrier._backward_hooks = OrderedDict({id(hook): hook})
    node._register_hook_dict(carrier)
