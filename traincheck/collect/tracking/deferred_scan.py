"""Scans of tensors on devices: started together when a scan ends, read when the step ends.

No tensor is kept alive meanwhile: the program may free its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from traincheck.collect.tensors.device_fingerprint import (
    PendingDigests,
    finish,
    read,
    start,
)
from traincheck.collect.tensors.devices import is_capturing
from traincheck.collect.tensors.fingerprint import components, seed_of_parts
from traincheck.collect.tensors.reading import as_plain, local_of, unseen
from traincheck.collect.tensors.sketch import read_sketches
from traincheck.collect.tensors.sums import read_norms

if TYPE_CHECKING:
    from traincheck.collect.tracking.tracked_tensor import TrackedTensor


@dataclass(slots=True, kw_only=True)
class DeferredScan:
    """A scan of a variable whose digest is computed on a device.

    Attributes:
        after: the span after which it took place.
        is_new: whether there is no earlier content to compare with.
        is_told: whether a change is recorded, not only remembered.
        is_glance: whether it took place before the span began.
        are_values: for each part, whether it has elements of the tensor; empty if it was cleared.
        seed: of dtype and shape.
        prefix: of the fingerprint.
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
    """The result of a scan.

    Attributes:
        fingerprint: None for a gradient that was cleared.
        is_zero: whether every bit is zero; -0.0 is not.
    """

    look: DeferredScan
    fingerprint: str | None
    is_zero: bool
    stats: bytes


class DeferredScans:
    """Scans that wait for devices, in order. variables: ids of the scanned variables."""

    def __init__(self) -> None:
        self._waiting: list[tuple[DeferredScan, list[torch.Tensor]]] = []
        self._begun: list[tuple[PendingDigests, list[DeferredScan]]] = []
        self._actions: list[tuple[int, Callable[[], None]]] = []
        self.variables: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._begun)

    def add(self, look: DeferredScan, tensor: torch.Tensor) -> bool:
        """Scan a tensor when `begin` is called; False if it cannot be scanned.

        Work that is captured in a graph runs later, or never: its results are unknown.
        """
        if is_capturing():
            return False
        with unseen():
            parts = components(tensor)
            if parts is None:
                return False
            tensor, whole = as_plain(tensor), tensor
            if local_of(whole) is not None:  # the same as in `fingerprint`
                tensor, parts, look.prefix = parts[0], parts[:1], "shard-"
            look.seed = seed_of_parts(tensor, parts)
            look.are_values = tuple(part.dtype is tensor.dtype for part in parts)
        look.stats, look.variable.stats = look.variable.stats, b""
        self._put(look, parts)
        return True

    def clear(self, variable: TrackedTensor, after: int) -> bool:
        """A gradient is gone: whether scans of it wait, so that this must follow them."""
        if id(variable) not in self.variables:
            return False
        self._put(DeferredScan(variable=variable, after=after), [])
        return True

    def _put(self, look: DeferredScan, parts: list[torch.Tensor]) -> None:
        self._waiting.append((look, parts))
        self.variables.add(id(look.variable))

    def then(self, action: Callable[[], None]) -> None:
        """Call ``action`` once the scans that have begun so far have their results."""
        if self._begun:
            self._actions.append((len(self._begun), action))
        else:
            action()

    def begin(self) -> None:
        """Start the digests. Call it before the program continues and writes to the tensors."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            started = start([part for _, parts in waiting for part in parts])
            self._begun.append((started, [look for look, _ in waiting]))

    def read(self) -> Iterator[Found]:
        """The results of all scans. Waits for the devices, unless that would end a capture.

        The results are lost then, and the next scan finds the change.
        """
        begun, self._begun = self._begun, []
        actions, self._actions = self._actions, []
        self.variables.clear()
        if not begun or is_capturing():
            return
        batches = [iter(batch) for batch in read([started for started, _ in begun])]
        looks = [look for _, found in begun for look in found]
        late = read_sketches([look.stats for look in looks])
        norms = read_norms(late)
        stats = iter(
            [norm or text if type(text) is bytes else norm for norm, text in zip(norms, late)]
        )
        for index, ((_, found), digests) in enumerate(zip(begun, batches), 1):
            for look in found:
                one, text = list(islice(digests, len(look.are_values))), next(stats)
                if not one:
                    yield Found(look, None, is_zero=False, stats=b"")
                    continue
                zeros = [zero for (_, _, zero), is_value in zip(one, look.are_values) if is_value]
                fingerprint = look.prefix + finish(one, look.seed)
                yield Found(look, fingerprint, is_zero=bool(zeros) and all(zeros), stats=text)
            for place, action in actions:  # the caller has noted these results
                if place == index:
                    action()
