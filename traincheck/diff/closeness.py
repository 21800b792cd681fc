"""When a difference counts: always, beyond a tolerance, or beyond what control runs differ by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from traincheck.diff.items import Item, Key
from traincheck.diff.phases import Phase

# The draws of a generator and the samples of a batch are the same or not; no number is close.
_EXACT = (Phase.RNG,)


class Closeness(Protocol):
    """Decides which differing items count."""

    words: str

    def counts(self, item: Item) -> bool | None:
        """Whether a difference is one; None if nothing recorded can tell."""
        ...


class Exact:
    """Every bit counts."""

    words = "bit for bit"

    def counts(self, item: Item) -> bool | None:
        """Always."""
        return True


class Within:
    """Tolerances of `torch.testing.assert_close`: alike if |a - b| <= atol + rtol * |b|.

    Args:
        rtol: relative tolerance.
        atol: absolute tolerance.
    """

    def __init__(self, rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self.words = f"within rtol {rtol:g}, atol {atol:g}"

    def counts(self, item: Item) -> bool | None:
        """Whether a number is beyond the tolerance; None if no numbers were recorded."""
        if item.phase in _EXACT or item.what in ("presence", "form", "shape", "mode", "count"):
            return True
        if not item.gaps:
            if item.is_sized:
                return False
            return None if item.what in ("bits", "dtype") else True
        return not all(gap.size <= self._atol + self._rtol * abs(gap.b) for gap in item.gaps)


class Spread:
    """Alike if no farther apart than control runs are, times a factor.

    Args:
        factor: how many times the largest difference of the control runs is still alike.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._largest: dict[Key, dict[str, float]] = {}
        self.words = f"within {factor:g} x the spread of the control runs"

    def learn(self, items: Iterable[Item]) -> None:
        """Take in by how much a control run differs in one step."""
        for item in items:
            largest = self._largest.setdefault(item.key, {})
            for gap in item.gaps:
                largest[gap.name] = max(gap.size, largest.get(gap.name, 0.0))

    def spread(self, item: Item) -> float | None:
        """The largest difference of the control runs here; None if they never differed."""
        largest = self._largest.get(item.key)
        return None if largest is None else max(largest.values(), default=None)

    def counts(self, item: Item) -> bool | None:
        """Whether it exceeds the spread; None if controls differ and no number says how much."""
        largest = self._largest.get(item.key)
        if largest is None:
            return True
        if not item.gaps:
            return None
        return any(gap.size > self._factor * largest.get(gap.name, 0.0) for gap in item.gaps)
