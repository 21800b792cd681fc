"""The first NaN or infinity of a step that spreads, and the operation that it comes from.

On the CPU a sum decides at once. On other devices smallest and largest elements wait there until
the step is over.

An infinity alone is no fault: masks hold them. It becomes one when a NaN, a loss, a gradient or a
parameter comes of it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from traincheck.collect.tensors.reading import PLAIN_TYPES, is_a, is_countable, is_opaque

_MOST_ENTRIES = 20_000
# Functions that put infinities where a program asks for them.
_PLACING = frozenset(
    {"masked_fill", "masked_fill_", "full", "full_like", "new_full", "fill_", "where", "triu",
     "tril", "tensor", "masked_scatter", "index_fill", "finfo"}
)  # fmt: skip
# Functions whose results hold whatever was in memory before.
_UNSET = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
     "resize_", "resize_as_"}
)  # fmt: skip
# Nodes that give the memory of a gradient to the next node: it was tested already.
_HANDING_ON = frozenset(
    f"{name}Backward{number}"
    for name in ("Add", "Alias", "Expand", "Permute", "ReshapeAlias", "Squeeze", "Sub", "T",
                 "Transpose", "UnsafeView", "Unsqueeze", "View")
    for number in range(3)
)  # fmt: skip
FORWARD, LOSS, GIVEN, BACKWARD, GRADIENT, OPTIMIZER = (
    "forward", "loss", "given", "backward", "gradient", "optimizer",
)  # fmt: skip
# Kinds of entries that make a fault of an infinity.
_FINAL = frozenset({LOSS, BACKWARD, GRADIENT, OPTIMIZER})


@dataclass(slots=True)
class Entry:
    """A tensor that may not be finite. value: smallest and largest element, or both on a device."""

    kind: str
    name: str
    call: int
    where: str | None
    value: Any
    sources: tuple[int, ...] = ()
    target: tuple[int, int] | None = None
    is_placed: bool = field(default=False)


class FiniteWatch:
    """The entries of one step.

    Attributes:
        bad: node and place of each gradient that is not finite; complete after `origin`.
    """

    def __init__(self, name_of: Callable[[torch.Tensor], str | None]) -> None:
        self.entries: list[Entry] = []
        self.bad: set[tuple[int, int]] = set()
        self.skipped = 0  # tensors that could not be read
        self._name_of = name_of
        self._unset: dict[int, weakref.ref[torch.Tensor]] = {}
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def result(
        self, name: str, call: int, where: Callable[[], str | None], given: Any, tensors: Any
    ) -> None:
        """An operation has returned. where: its line, asked for if it is needed."""
        for tensor in tensors:
            if name in _UNSET:
                self._unset[id(tensor)] = weakref.ref(tensor)
                continue
            is_same = not (self.entries or name.endswith("_")) and _is_view_of(tensor, given)
            value = None if is_same else self._value(tensor)
            if value is None:
                self._known.pop(id(tensor), None)
                self._unset.pop(id(tensor), None)
                continue
            if self._unset and any(map(self._is_unset, (tensor, *given))):
                continue
            sources = tuple(self._sources(given, tensor))
            placed = name in _PLACING or any(
                isinstance(one, float) and math.isinf(one) for one in given
            )
            self._add(tensor, Entry(FORWARD, name, call, where(), value, sources, None, placed))

    def root(self, tensor: torch.Tensor, call: int, where: str | None, *, is_known: bool) -> None:
        """A backward pass begins at this tensor. is_known: operations are seen, its own as well."""
        value = self._value(tensor)
        if value is not None:
            sources = tuple(self._sources((tensor,), None)) if is_known else ()
            self._add(None, Entry(LOSS, "backward", call, where, value, sources))

    def gradient(
        self, name: str, call: int, where: Callable[[], str | None], gradients: Iterable[Any],
        given: Iterable[Any], targets: tuple[tuple[int, int] | None, ...],
    ) -> None:  # fmt: skip
        """A node has computed gradients. targets: where each of them goes."""
        met: set[int] = set()
        if name in _HANDING_ON and not self.entries:
            met = {one.data_ptr() for one in given if type(one) is torch.Tensor}
        for gradient, target in zip(gradients, targets):
            if type(gradient) is not torch.Tensor or gradient.data_ptr() in met:
                continue
            value = self._value(gradient)
            if value is not None:
                self._add(None, Entry(BACKWARD, name, call, where(), value, target=target))

    def updated(self, parameter: torch.Tensor, where: str | None) -> None:
        """An optimizer has stepped."""
        value = self._value(parameter)
        if value is None:
            return
        name = self._name_of(parameter) or ""
        gradient = parameter.grad
        found = None if gradient is None else self._value(gradient)
        if found is not None:
            self._add(None, Entry(GRADIENT, name, 0, where, found))
        self._add(None, Entry(OPTIMIZER, name, 0, where, value))

    def is_found(self, tensor: torch.Tensor) -> bool:
        """Whether an operation was found to return this tensor, not finite."""
        known = self._known.get(id(tensor))
        return known is not None and known[0]() is tensor

    def check(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on the CPU is not finite; False for others."""
        value = self._value(tensor)
        return value is not None and isinstance(value[0], float)

    def _is_unset(self, value: Any) -> bool:
        """Whether a tensor, or the one that it is a view of, was never written to."""
        if not isinstance(value, torch.Tensor):
            return False
        base = value._base
        found = self._unset.get(id(value))
        return (found is not None and found() is value) or (
            base is not None and self._is_unset(base)
        )

    def _add(self, tensor: torch.Tensor | None, entry: Entry) -> None:
        if len(self.entries) < _MOST_ENTRIES:
            self.entries.append(entry)
            if tensor is not None:
                self._known[id(tensor)] = weakref.ref(tensor), len(self.entries) - 1

    def _sources(self, given: Iterable[Any], result: torch.Tensor | None) -> Iterable[int]:
        """Entries of the arguments; those that no operation made are tested now."""
        for tensor in given:
            if not is_a(tensor, torch.Tensor) or is_opaque(type(tensor)):
                continue
            known = self._known.get(id(tensor))
            if known is not None and known[0]() is tensor:
                yield known[1]
            elif tensor is not result and tensor.is_cpu:
                value = self._value(tensor)
                if value is not None:
                    label = self._name_of(tensor) or ""
                    self._add(tensor, Entry(GIVEN, label, 0, None, value))
                    yield len(self.entries) - 1

    def _value(self, tensor: torch.Tensor) -> Any:
        """Smallest and largest element, if they may not be finite."""
        if type(tensor) not in PLAIN_TYPES or not is_countable(tensor):
            return None
        if not tensor.is_floating_point():
            return None
        tensor = tensor.detach()
        if not tensor.numel():
            return None
        if not tensor.is_cpu:
            return torch.aminmax(tensor)
        if math.isfinite(tensor.sum().item()):
            return None
        low, high = (end.item() for end in torch.aminmax(tensor))
        return None if math.isfinite(low) and math.isfinite(high) else (low, high)

    # -- after the step

    def origin(self) -> Entry | None:
        """The entry that the first fault comes from; None if there is no fault."""
        _read(self.entries)
        first = None
        for index, entry in enumerate(self.entries):
            if entry.value is None:
                continue
            if entry.kind == BACKWARD and entry.target is not None:
                self.bad.add(entry.target)
            is_fault = math.isnan(entry.value[0]) or entry.kind in _FINAL
            if first is None and is_fault:
                first = index
        return None if first is None else self.entries[self._source(first)]

    def _source(self, index: int) -> int:
        """The earliest entry that this one comes from, without infinities of masks."""
        chain, open_ones = {index}, [index]
        while open_ones:
            for source in self.entries[open_ones.pop()].sources:
                if source not in chain and self.entries[source].value is not None:
                    chain.add(source)
                    open_ones.append(source)
        placed: set[int] = set()
        for one in sorted(chain):
            entry = self.entries[one]
            found = [source for source in entry.sources if source in chain]
            passes_on = bool(found) and placed.issuperset(found)
            is_mask = entry.is_placed or entry.kind == GIVEN or passes_on
            if is_mask and entry.value[1] < math.inf and not math.isnan(entry.value[0]):
                placed.add(one)
        left = [one for one in sorted(chain) if one not in placed]
        return left[0] if left else index


def _is_view_of(tensor: torch.Tensor, given: Iterable[Any]) -> bool:
    """Whether it shows elements of an argument, which were tested already."""
    base = None if is_opaque(type(tensor)) else tensor._base
    if base is None:
        return False
    return any(
        one is not tensor and (one is base or one._base is base)
        for one in given
        if is_a(one, torch.Tensor) and not is_opaque(type(one))
    )


def _read(entries: list[Entry]) -> None:
    """Numbers of all devices at once."""
    waiting = [entry for entry in entries if not isinstance(entry.value[0], float)]
    if not waiting:
        return
    ends = torch.stack([end.float() for entry in waiting for end in entry.value]).tolist()
    for entry, low, high in zip(waiting, ends[::2], ends[1::2]):
        is_finite = math.isfinite(low) and math.isfinite(high)
        entry.value = None if is_finite else (low, high)


def text_of(value: tuple[float, float]) -> str:
    """``NaN``, ``Inf`` or ``-Inf``."""
    if math.isnan(value[0]) or math.isnan(value[1]):
        return "NaN"
    return "Inf" if value[1] == math.inf else "-Inf"
