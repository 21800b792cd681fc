"""The numbers of the step that is being measured, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from traincheck.collect.tensors.reading import is_a, items_of, sequence_of
from traincheck.collect.tensors.sums import Taken, local_part, read_sums, sums_of, why_not
from traincheck.schema.metrics.sums import Combine, Row, merge, scaled, sharded

_MOST_LEAVES = 64  # tensors of one result
_MOST_DEPTH = 3


class StepNumbers:
    """Sums and values of one step.

    Attributes:
        sums: name -> sums of its tensors in all calls.
        values: name -> weight, and the weighted sum or what `Combine` makes of the values.
        combine: name -> how its numbers combine, where that is not usual.
        skipped: name -> why a tensor is not measured.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Row] = {}
        self.values: dict[str, list[float]] = {}
        self.combine: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self._heads: list[tuple[str, str, str, torch.Tensor]] = []
        self._late: list[tuple[str, torch.Tensor, float]] = []

    def add(self, name: str, tensor: torch.Tensor, columns: frozenset[str]) -> None:
        """Add the sums of a tensor."""
        tensor, copies = local_part(tensor)
        reason = why_not(tensor)
        if reason is not None:
            self.skipped[name] = reason
            return
        if copies:
            self.combine[name] = sharded(copies)
        self.add_sums(name, sums_of(tensor, columns))

    def add_sums(self, name: str, taken: Taken, factor: float = 1.0) -> None:
        """Add the sums that were taken of a tensor, as if its elements were times ``factor``."""
        if isinstance(taken, torch.Tensor):
            self._late.append((name, taken, factor))
            return
        if factor != 1.0:
            taken = scaled(taken, factor)
        known = self.sums.get(name)
        if known is None:
            self.sums[name] = taken
        else:
            merge(known, taken)

    def add_value(self, name: str, value: float, weight: float, how: str = Combine.MEAN) -> None:
        """Add a number of a metric.

        Args:
            name: of the metric.
            value: the number.
            weight: how much it counts in a mean, such as the number of rows it is of.
            how: see `Combine`.
        """
        if how != Combine.MEAN:
            self.combine[name] = how
        known = self.values.get(name)
        if known is None:
            self.values[name] = [weight, value * weight if how == Combine.MEAN else value]
            return
        known[0] += weight
        known[1] = Combine.add(how, known[1], value * weight if how == Combine.MEAN else value)

    def add_heads(self, key: str, name: str, how: str, numbers: torch.Tensor) -> None:
        """Add a metric of each head: weights and values, (2, heads)."""
        self._heads.append((key, name, how, numbers))

    def read(self) -> None:
        """Turn the sums that are on a device into numbers, in one copy."""
        heads, self._heads = self._heads, []
        for key, name, how, numbers in heads:
            for head, (weight, value) in enumerate(zip(*numbers.tolist())):
                if weight:
                    mean = value / weight if how == Combine.MEAN else value
                    self.add_value(f"{key}/{name}.head_{head}", mean, weight, how)
        late, self._late = self._late, []
        for (name, _, factor), row in zip(late, read_sums([taken for _, taken, _ in late])):
            self.add_sums(name, row, factor)

    def clear(self) -> None:
        """Forget the numbers of a step that is over."""
        self.__init__()  # type: ignore[misc]

    def __bool__(self) -> bool:
        return bool(self.sums or self.values or self._late or self._heads)


def leaves(value: Any, name: str, take: Callable[[str, torch.Tensor], None]) -> None:
    """Call ``take`` with each tensor in a value: ``fc``, ``lstm[0]``, ``encoder[hidden]``."""
    if is_a(value, torch.Tensor):
        take(name, value)
        return
    left = [_MOST_LEAVES]
    _walk(value, name, take, left, 0)


def leaves_beside(
    value: Any,
    other: Any,
    name: str,
    take: Callable[[str, torch.Tensor, torch.Tensor | None], None],
) -> None:
    """Call ``take`` with each tensor in a value, and the one at its place in the other, or None."""
    others: dict[str, torch.Tensor] = {}
    leaves(other, name, others.__setitem__)
    leaves(value, name, lambda leaf, tensor: take(leaf, tensor, others.get(leaf)))


def _walk(
    value: Any, name: str, take: Callable[[str, torch.Tensor], None], left: list[int], depth: int
) -> None:
    if is_a(value, torch.Tensor):
        left[0] -= 1
        take(name, value)
        return
    if depth >= _MOST_DEPTH or left[0] <= 0:
        return
    if (sequence := sequence_of(value, _MOST_LEAVES)) is not None:
        for index, one in enumerate(sequence):
            _walk(one, f"{name}[{index}]", take, left, depth + 1)
    else:
        for key, one in items_of(value, _MOST_LEAVES) or ():
            _walk(one, f"{name}[{str(key)[:100]}]", take, left, depth + 1)
