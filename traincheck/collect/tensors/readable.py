"""Which tensors can be read, element by element, without side effects."""

from __future__ import annotations

import torch

from traincheck.collect.tensors.devices import can_capture, is_remote
from traincheck.collect.tensors.fingerprint import LOW, has_memory
from traincheck.collect.tensors.reading import PLAIN_TYPES, modes

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_COUNTED = FLOATS | INTS
HALF = frozenset({torch.float16, torch.bfloat16})
# Inside torch.func. Reading its level creates a state that each node of a backward pass copies.
FUNC = getattr(getattr(torch._C, "DispatchKey", None), "FuncTorchDynamicLayerFrontMode", None)
is_included = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", lambda _: False)


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
