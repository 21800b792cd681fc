"""The limits that the readings of a run support."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.loss_scales import OF_TERMS, Numbers, ScaleReading
from traincheck.readings.losses import (
    BCE_LOGITS,
    CROSS_ENTROPY,
    OVER_CLASSES,
)
from traincheck.readings.reading import (
    Key,
    Reading,
)
from traincheck.relations.bounded.quantities import (
    QUANTITIES,
)
from traincheck.schema.claims import (
    Hypothesis,
)

Limits = dict[str, Any]  # low, high; open: neither is reached; sums: functions that add up terms
_SAME = 2e-6  # relative: a smaller difference is rounding
_WIDER = 1.25  # than the readings, where a number varies with the data
_MUCH_WIDER = 30.0
_CLOSE = 2.0  # than the readings, where a sampled view may find a little more
_MOST_SPREAD = 2.5  # of a number that is bounded from both sides
_FEW = 3  # distinct values of the number of batches of an update
_FEWEST = 2  # classes
_MOST_SEEN, _MOST = 0.5, 0.9  # share of units that is seen, and that is allowed
_CLEAR_SHARE = 1e-4  # of the gradients: smaller shares may be mere noise
_VANISHED = 1e-3  # of the least share that was seen
_CLEAR = 0.3  # of the largest magnitude: then a sign is not coincidence
_MIN_SERIES = 3
_SECOND = 2  # call of a model for one more token: with it a series begins
# How far the first update moves weights, in learning rates, and the later ones, if an optimizer
# divides gradients by their size.
_RATE, _RATES = (0.98, 1.06), (0.75, 1.15)
_AT_MOST = {
    "torch.nn.functional.nll_loss": 0.0,
    "torch.nn.functional.kl_div": 0.0,
    "torch.nn.functional.binary_cross_entropy": 1.0,
}  # arguments of a logarithm, or results of one
_OF_PROBABILITIES = frozenset({"torch.nn.functional.binary_cross_entropy"})
_OF_LOGITS = frozenset({CROSS_ENTROPY, BCE_LOGITS})


class ReadingHistory:
    """The readings of a run, by key."""

    def __init__(self) -> None:
        self._values: dict[Key, list[float]] = defaultdict(list)
        self._ends: dict[Key, list[float]] = defaultdict(list)  # of series
        self._is_plain = True
        self._sums: frozenset[str] = frozenset()
        self._is_echo = False

    def add(self, reading: Reading) -> None:
        """Enter a reading."""
        self._values[reading.key].append(reading.value)
        if isinstance(reading, ScaleReading):
            self._is_plain &= reading.is_plain
            self._sums |= reading.sums
        if reading.what == Numbers.GENERATED:
            ends = self._ends[reading.key]
            if reading.value == _SECOND or not ends:
                ends.append(reading.value)
            ends[-1] = reading.value

    def claims(self, program: str | None, *, is_echo: bool = False) -> Iterator[Hypothesis]:
        """The limits of each key with enough readings; of each key for an echo."""
        self._is_echo = is_echo
        for key, values in sorted(self._values.items()) if program is not None else ():
            is_enough = len(values) >= QUANTITIES[key.what].enough
            limits = self._of(key, values) if is_echo or is_enough else None
            if is_echo and not is_enough:
                limits = self._tight(key, values) or limits
            if limits is not None:
                params = {"program": program, "quantity": key.what, **limits}
                params |= {n: text for n, text in (("api", key.of), ("name", key.under)) if text}
                yield Hypothesis(relation="bounded", params=params)

    def keys(self) -> Iterable[Key]:
        """The keys of all readings."""
        return self._values

    def _tight(self, key: Key, values: Sequence[float]) -> Limits | None:
        """Limits that few readings support: closer than proposed ones, so that they imply those."""
        low, high = min(values), max(values)
        if key.what == Numbers.GRADIENT_NORM:
            return {"high": _up(_CLOSE * high)} if high > 0 else None
        if key.what == Numbers.LEAST_SHARE:
            return {"low": -_up(-low / _CLOSE)}
        if (
            key.what == Numbers.SMALLEST
            and key.under == "input"
            and key.of in _OF_LOGITS
            and high < 0
        ):
            return {"high": 0.0, "open": True}
        return None

    def _of(self, key: Key, values: Sequence[float]) -> Limits | None:
        low, high = min(values), max(values)
        if key.what == Numbers.LOSS_SCALE:
            limits = self._scale(key, values)
            return {**limits, "sums": sorted(self._sums)} if limits and self._sums else limits
        if key.what == Numbers.GENERATED:
            ends = self._ends[key]
            is_enough = self._is_echo or len(ends) >= _MIN_SERIES
            is_limit = is_enough and 2 * ends.count(high) >= len(ends)
            return {"high": high} if is_limit else None
        if key.what == Numbers.GRADIENT_NORM:
            return {"high": float(f"{_MUCH_WIDER * high:.3g}")} if high > 0 else None
        if key.what == Numbers.MOVED:
            is_even = _RATE[0] <= values[0] <= _RATE[1] and _RATES[0] <= low <= high <= _RATES[1]
            return {"high": math.ceil(_WIDER * high * 10) / 10} if is_even else None
        if key.what in _PLAIN:
            return _plain(key.what, low, high)
        return _sign(key, low, high, self._values)

    def _is_undivided(self) -> bool:
        """Whether backward gets undivided sums, or multiples of them."""
        values = self._values.get(Key(Numbers.LOSS_SCALE, under=OF_TERMS))
        if not values or not self._sums:
            return False
        low, high = min(values), max(values)
        return low >= 1 - _SAME and high - low <= _SAME * high

    def _scale(self, key: Key, values: Sequence[float]) -> Limits | None:
        if self._is_undivided() != (key.under == OF_TERMS):
            return None  # the number of terms of a sum is a setting; a mean has no other form
        low, high = min(values), max(values)
        if abs(high - low) <= _SAME * abs(high):
            value = float(f"{high:.6g}")
            return {"low": value, "high": value}
        # Counts of terms or of batches vary in few values; the share of a penalty drifts.
        is_counted = self._sums or len({f"{value:.4g}" for value in values}) <= _FEW
        if low > 0 and self._is_plain and is_counted and high < _MOST_SPREAD * low:
            # On a coarse grid, so that ranks and runs agree.
            return {
                "low": math.floor(low / _WIDER * 10) / 10,
                "high": math.ceil(high * _WIDER * 2) / 2,
            }
        return None


def _up(value: float) -> float:
    """No less than ``value``, in three digits."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return math.ceil(value * 10.0**digits) / 10.0**digits


_PLAIN = frozenset(
    {
        Numbers.NON_FINITE,
        Numbers.END_TOKEN,
        Numbers.AHEAD,
        Numbers.HIDDEN,
        Numbers.LEFT_OUT,
        Numbers.MASK,
        Numbers.PADDING,
        Numbers.CLIPPED_NORM,
        Numbers.FLAT,
        Numbers.CLASSES,
        Numbers.LEAST_SHARE,
        Numbers.DEAD,
        Numbers.SATURATED,
    }
)


def _plain(quantity: str, low: float, high: float) -> Limits | None:
    """Limits that follow from the extremes alone."""
    if quantity in (Numbers.MASK, Numbers.HIDDEN, Numbers.LEFT_OUT):
        return {"low": 1.0} if low >= 1 else None
    if quantity == Numbers.AHEAD:
        return {"low": low, "high": high} if low == high else None
    if quantity in (Numbers.NON_FINITE, Numbers.END_TOKEN, Numbers.PADDING):
        return {"high": 0.0} if high <= 0 else None
    if quantity == Numbers.CLASSES:
        return {"low": _FEWEST} if low >= _FEWEST else None
    if quantity == Numbers.LEAST_SHARE:
        return {"low": float(f"{_VANISHED * low:.1g}")} if low >= _CLEAR_SHARE else None
    if quantity in (Numbers.DEAD, Numbers.SATURATED):
        return {"high": _MOST} if high <= _MOST_SEEN else None
    return {"low": 0.0, "open": True} if low > 0 else None


def _sign(
    key: Key, low: float, high: float, values: Mapping[Key, Sequence[float]]
) -> Limits | None:
    """The side of zero, or of one, on which the extremes are; None if that may be chance."""
    other = Key(
        Numbers.LARGEST if key.what == Numbers.SMALLEST else Numbers.SMALLEST, key.of, key.under
    )
    if key.under == "target":  # labels, some of which are ignored, but not all
        lowest = min(values.get(other, (0.0,)))
        is_ignoring = key.what == Numbers.LARGEST and key.of in OVER_CLASSES and lowest < 0
        return {"low": 0.0} if is_ignoring and low >= 0 else None
    if key.what == Numbers.LARGEST:
        limit = _AT_MOST.get(key.of)
        return None if limit is None or high > limit else {"high": limit}
    if key.of in _OF_LOGITS:
        across = list(zip(values[key], values.get(other, values[key])))
        clear = all(-mine >= _CLEAR * max(abs(mine), abs(its)) for mine, its in across)
        # With a single class the bias decides the sign, unless both signs occur.
        if key.of == BCE_LOGITS:
            clear = clear and all(its > 0 for _, its in across)
        return {"high": 0.0, "open": True} if clear else None
    return {"low": 0.0} if key.of in _OF_PROBABILITIES and low >= 0 else None
