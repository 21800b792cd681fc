"""Memory of a step that is known without an allocator: what graphs keep, and gradients.

On a GPU, also the bytes that the allocator counts, at the beginning and the end of calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


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
        now = torch.cuda.memory_allocated()
        if now > self.allocated_peak:
            self.allocated_peak, self.allocated_call = now, call
        return now
