"""Looks at tensors on devices: begun together when a look at many ends, read when a step does.

Nothing of the tensors is kept meanwhile: the program may give their memory back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from traincheck.collect.tensors.device_fingerprint import (
    Digest,
    PendingDigests,
    finish,
    is_capturing,
    read,
    start,
)
from traincheck.collect.tensors.fingerprint import components, seed_of_parts
from traincheck.collect.tensors.norms import read_norms
from traincheck.collect.tensors.reading import unseen

if TYPE_CHECKING:
    from traincheck.collect.tracking.tracked_tensor import TrackedTensor


@dataclass(slots=True, kw_only=True)
class DeferredScan:
    """A look at a variable whose digest is made on a device.

    after: the span after which it was.
    is_new: nothing that was seen before is to be compared with it.
    is_told: a change is recorded, not only remembered. is_glance: it was before the span began.
    are_values: of each part, whether it holds elements of the tensor; none when it was cleared.
    seed: of dtype and shape. prefix: of the fingerprint.
    """

    variable: TrackedTensor
    after: int | None
    is_new: bool = False
    is_told: bool = True
    is_glance: bool = False
    are_values: tuple[bool, ...] = ()
    seed: int = 0
    prefix: str = ""
    stats: Any = b""


class Found(NamedTuple):
    """What a look found. fingerprint: None of a gradient that was cleared.

    is_zero: every bit of it is; what has a sign is not.
    """

    look: DeferredScan
    fingerprint: str | None
    is_zero: bool
    stats: bytes


class DeferredScans:
    """Looks that wait for devices, in their order. variables: ids of what they are at."""

    def __init__(self) -> None:
        self._waiting: list[tuple[DeferredScan, list[torch.Tensor]]] = []
        self._begun: list[tuple[PendingDigests, list[DeferredScan]]] = []
        self.variables: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._begun)

    def add(self, look: DeferredScan, tensor: torch.Tensor) -> bool:
        """Look at a tensor, when `begin` is called; False where there is nothing to look at.

        Work that is captured in a graph is done later, or never: nothing is known of its results.
        """
        if is_capturing():
            return False
        with unseen():
            parts = components(tensor)
            if parts is None:
                return False
            if hasattr(tensor, "_local_tensor"):  # as `fingerprint` does
                tensor, parts, look.prefix = parts[0], parts[:1], "shard-"
            look.seed = seed_of_parts(tensor, parts)
            look.are_values = tuple(part.dtype is tensor.dtype for part in parts)
        look.stats, look.variable.stats = look.variable.stats, b""
        self._put(look, parts)
        return True

    def clear(self, variable: TrackedTensor, after: int) -> bool:
        """A gradient is gone: whether looks at it wait, so that this comes after them."""
        if id(variable) not in self.variables:
            return False
        self._put(DeferredScan(variable=variable, after=after), [])
        return True

    def _put(self, look: DeferredScan, parts: list[torch.Tensor]) -> None:
        self._waiting.append((look, parts))
        self.variables.add(id(look.variable))

    def begin(self) -> None:
        """Digest what was added. To be called before the program runs on and writes to it."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            started = start([part for _, parts in waiting for part in parts])
            self._begun.append((started, [look for look, _ in waiting]))

    def read(self) -> Iterator[Found]:
        """What all looks found. Waits for the devices, unless that would end a capture.

        What was found is lost then: a change is seen by the next look, as if there had been none.
        """
        begun, self._begun = self._begun, []
        self.variables.clear()
        if not begun or is_capturing():
            return
        batches = [iter(batch) for batch in read([started for started, _ in begun])]
        looks = [look for _, found in begun for look in found]
        stats = iter(read_norms([look.stats for look in looks]))
        for (_, found), digests in zip(begun, batches):
            for look in found:
                yield _found(look, list(islice(digests, len(look.are_values))), next(stats))


def _found(look: DeferredScan, digests: list[Digest], stats: bytes) -> Found:
    if not digests:
        return Found(look, None, is_zero=False, stats=b"")
    values = [digest for digest, is_value in zip(digests, look.are_values) if is_value]
    is_zero = bool(values) and all(is_zero for _, _, is_zero in values)
    return Found(look, look.prefix + finish(digests, look.seed), is_zero, stats)
