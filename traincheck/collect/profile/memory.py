"""Memory of a step that is known without an allocator: what graphs keep, and gradients.

On a GPU, also the bytes that the allocator counts, at the beginning and the end of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from traincheck.collect.tensors import devices
from traincheck.collect.tensors.loss_graph import CUSTOM
from traincheck.collect.tensors.reading import as_plain
from traincheck.handlers import give_back


class MemoryWatch:
    """The bytes of one step.

    Attributes:
        held: bytes that graphs keep now.
        peak: the most of kept bytes and new gradients together.
        peak_call: the call whose node was computing gradients then; None before backward passes.
        allocated_peak, allocated_call: the same of the allocator of a GPU.
    """

    def __init__(self, known: Iterable[tuple[int, int] | None], *, is_cuda: bool) -> None:
        self.held = 0
        self._gradients = 0
        self.peak = 0
        self.peak_call: int | None = None
        self.allocated_peak = 0
        self.allocated_call = 0
        self._is_cuda = is_cuda
        self._excluded = {found[0] for found in known if found is not None}
        self._claimed: set[int] = set()

    def exclude(self, known: Iterable[tuple[int, int] | None]) -> None:
        """Memory of parameters and buffers, which lasts anyway."""
        self._excluded.update(found[0] for found in known if found is not None)

    def claim(self, found: tuple[int, int] | None) -> int:
        """Bytes of this memory, if no other node keeps it."""
        if found is None or found[0] in self._excluded or found[0] in self._claimed:
            return 0
        self._claimed.add(found[0])
        return found[1]

    def begin_backward(self) -> None:
        """A backward pass begins."""
        self._note(None)

    def backward(self, call: int, held: int, targets: tuple[tuple[int, int] | None, ...]) -> None:
        """A node is done: its saved tensors are free, the gradients of leaves are there."""
        self._gradients += sum(found[1] for found in targets if found and found[0] == -1)
        self._note(call)
        self.held -= held

    def _note(self, call: int | None) -> None:
        total = self.held + self._gradients
        if total > self.peak:
            self.peak, self.peak_call = total, call

    def end_backward(self) -> None:
        """The outermost backward pass has ended; its graph is free, as a rule."""
        self._claimed.clear()
        self.held = 0

    def allocated(self, call: int) -> int:
        """Bytes that the allocator of the GPU has given out; 0 on the CPU."""
        if not self._is_cuda:
            return 0
        now = devices.allocated()
        if now > self.allocated_peak:
            self.allocated_peak, self.allocated_call = now, call
        return now


_names: dict[type, tuple[str, ...]] = {}  # of the nodes of torch, one for each function
_SavedTensor: Any = torch._C._autograd.SavedTensor
_RAW = "_raw_saved_"
IS_READABLE = hasattr(_SavedTensor, "unpack_hook")


# A tensor that a hook has packed is not unpacked: that may compute a layer again. Of a segment of
# `torch.utils.checkpoint`, the inputs that it keeps are found instead.
def saved_tensors(node: Any, packed: list[Any]) -> Iterator[torch.Tensor]:
    """The saved tensors of a node. packed: gets the hooks of those that are not given."""
    cls = type(node)
    if issubclass(cls, CUSTOM):  # of a program, whose classes are freed: all have the same names
        cls = CUSTOM
    names = _names.get(cls)
    if names is None:
        found = (name for name in dir(cls) if name.startswith(_RAW))
        names = _names[cls] = tuple(found)
    for name in names:
        raw = getattr(node, name)
        for one in raw if isinstance(raw, (tuple, list)) else (raw,):
            if one is None:
                continue
            if one.unpack_hook is not None:
                packed.append(one.unpack_hook)
                continue
            data = one.data
            if isinstance(data, torch.Tensor):
                yield data


def kept_inputs(unpack: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The inputs that a checkpointed segment keeps. seen: segments that were given already.

    `torch.utils.checkpoint` without ``use_reentrant`` keeps them in a node that no graph has; the
    hook that unpacks leads to it.
    """
    code, cells = getattr(unpack, "__code__", None), getattr(unpack, "__closure__", None)
    if code is None or not cells:
        return
    frame = dict(zip(code.co_freevars, cells)).get("frame")
    if frame is None or id(frame.cell_contents) in seen:
        return
    seen.add(id(frame.cell_contents))
    kept = getattr(frame.cell_contents, "saved_args", None)
    if kept is None:  # before torch 2.11
        saver = getattr(frame.cell_contents, "input_saver", None)
        node = getattr(saver, "grad_fn", None)
        kept = () if node is None else node._raw_saved_tensors
    for one in kept:
        if isinstance(one, _SavedTensor) and one.unpack_hook is None:
            yield one.data


def size_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of the memory of a tensor; None if it has none."""
    try:
        storage = as_plain(tensor).untyped_storage()
        return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None
    except (NotImplementedError, RuntimeError) as error:  # subclasses, sparse tensors
        give_back(error)
        return None
