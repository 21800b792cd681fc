"""Gradients that have faded: training has converged as far as float32 can tell.

The remaining updates are then rounded to zero.
"""

from __future__ import annotations

_SHARE = 1e-3  # of the largest gradient; less is almost zero
_PRECISE = ("float32", "float64")  # others lose updates while there is still much to learn


class FadedGradients:
    """The last and the largest gradient norm of each parameter or other key."""

    def __init__(self) -> None:
        self._norms: dict[int | str, tuple[float, float]] = {}

    def enter(self, key: int | str, norm: float) -> None:
        self._norms[key] = norm, max(norm, self._norms.get(key, (norm, norm))[1])

    def forget(self, key: int | str) -> None:
        self._norms.pop(key, None)

    def is_faded(self, key: int | str, dtype: str) -> bool:
        """Whether small updates of a parameter of this dtype may now round to zero."""
        last, largest = self._norms.get(key, (0.0, 0.0))
        return last < _SHARE * largest and dtype in _PRECISE
