"""Between which limits readings stay, and are meant to stay. Proposes; decides nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.losses import BCE_LOGITS, CROSS_ENTROPY, OVER_CLASSES
from traincheck.relations.readings.reading import (
    AHEAD,
    CLASSES,
    CLIPPED_NORM,
    DEAD,
    END_TOKEN,
    FLAT,
    GENERATED,
    GRADIENT_NORM,
    HIDDEN,
    LARGEST,
    LEAST_SHARE,
    LEFT_OUT,
    LOSS_SCALE,
    MASK,
    MOVED,
    NON_FINITE,
    OF_TERMS,
    PADDING,
    SATURATED,
    SMALLEST,
    Key,
    Reading,
)
from traincheck.schema.claims import Hypothesis

Limits = dict[str, Any]  # low, high; open: neither is reached; sums: functions that add up terms
_MIN_SAMPLED = 4  # readings that only sampled steps have, and each of many elements
_MIN_READINGS = 7
_MIN_SHARES = 4  # of many units each
_SAME = 2e-6  # relative: two numbers that differ by less are one, but for rounding
_NEAR = 1e-2  # relative: within this, a number is what it was said to be
_WIDER = 1.25  # than what was seen, where a number varies with the data
_MUCH_WIDER = 30.0
_CLOSE = 2.0  # than what was seen, where a sampled view may find a little more
_MOST_SPREAD = 2.5  # of a number that is bounded from both sides
_FEW = 3  # values of a number that says how many batches an update is made of
_MIN_MANY = 12  # readings, before a norm is bounded
_FEWEST = 2  # classes that can be told apart
_MOST_SEEN, _MOST = 0.5, 0.9  # share of units that is seen, and that is allowed
_CLEAR_SHARE = 1e-4  # of the gradients, below which numbers may be nothing but noise
_VANISHED = 1e-3  # of the least share that was seen
_CLEAR = 0.3  # of the largest magnitude, by which a sign is no accident
_MIN_SERIES = 3
# Learning rates that the first update moves weights by, and the later ones, where gradients are
# divided by their size; so even are no others.
_RATE, _RATES = (0.98, 1.06), (0.75, 1.15)
_AT_MOST = {
    "torch.nn.functional.nll_loss": 0.0,
    "torch.nn.functional.kl_div": 0.0,
    "torch.nn.functional.binary_cross_entropy": 1.0,
}  # what a loss takes the logarithm of, or has had it taken of
_OF_PROBABILITIES = frozenset({"torch.nn.functional.binary_cross_entropy"})
_OF_LOGITS = frozenset({CROSS_ENTROPY, BCE_LOGITS})


class Samples:
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
        self._is_plain &= reading.is_plain
        self._sums |= reading.sums
        ends = self._ends[reading.key]
        if reading.begins or not ends:
            ends.append(reading.value)
        ends[-1] = reading.value

    def claims(self, program: str | None, *, is_echo: bool = False) -> Iterator[Hypothesis]:
        """The limits of each key that has some; of all, however few readings, for an echo."""
        self._is_echo = is_echo
        for key, values in sorted(self._values.items()) if program is not None else ():
            is_enough = len(values) >= _ENOUGH.get(key.quantity, _MIN_READINGS)
            limits = self._of(key, values) if is_echo or is_enough else None
            if is_echo and not is_enough:
                limits = self._tight(key, values) or limits
            if limits is not None:
                params = {"program": program, "quantity": key.quantity, **limits}
                params |= {n: text for n, text in (("api", key.api), ("name", key.name)) if text}
                yield Hypothesis(relation="bounded", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Of what there were readings."""
        return map(word, self._values)

    def _tight(self, key: Key, values: Sequence[float]) -> Limits | None:
        """What few readings bear out: closer limits than are proposed, so that they imply those."""
        low, high = min(values), max(values)
        if key.quantity == GRADIENT_NORM:
            return {"high": _up(_CLOSE * high)} if high > 0 else None
        if key.quantity == LEAST_SHARE:
            return {"low": -_up(-low / _CLOSE)}
        if key.quantity == SMALLEST and key.name == "input" and key.api in _OF_LOGITS and high < 0:
            return {"high": 0.0, "open": True}
        return None

    def _of(self, key: Key, values: Sequence[float]) -> Limits | None:
        low, high = min(values), max(values)
        if key.quantity == LOSS_SCALE:
            limits = self._scale(key, values)
            return {**limits, "sums": sorted(self._sums)} if limits and self._sums else limits
        if key.quantity == GENERATED:
            ends = self._ends[key]
            is_enough = self._is_echo or len(ends) >= _MIN_SERIES
            is_limit = is_enough and 2 * ends.count(high) >= len(ends)
            return {"high": high} if is_limit else None
        if key.quantity == GRADIENT_NORM:
            return {"high": float(f"{_MUCH_WIDER * high:.3g}")} if high > 0 else None
        if key.quantity == MOVED:
            is_even = _RATE[0] <= values[0] <= _RATE[1] and _RATES[0] <= low <= high <= _RATES[1]
            return {"high": math.ceil(_WIDER * high * 10) / 10} if is_even else None
        if key.quantity in _PLAIN:
            return _plain(key.quantity, low, high)
        return _sign(key, low, high, self._values)

    def _is_undivided(self) -> bool:
        """Whether backward is given sums as they are, or so many times each."""
        values = self._values.get(Key(LOSS_SCALE, name=OF_TERMS))
        if not values or not self._sums:
            return False
        low, high = min(values), max(values)
        return low >= 1 - _SAME and high - low <= _SAME * high

    def _scale(self, key: Key, values: Sequence[float]) -> Limits | None:
        if self._is_undivided() != (key.name == OF_TERMS):
            return None  # how many terms a sum has is a setting; a mean has no other form
        low, high = min(values), max(values)
        if abs(high - low) <= _SAME * abs(high):
            value = float(f"{high:.6g}")
            return {"low": value, "high": value}
        # By counts of terms, or of batches; a penalty beside the loss has a share that drifts.
        is_counted = self._sums or len({f"{value:.4g}" for value in values}) <= _FEW
        if low > 0 and self._is_plain and is_counted and high < _MOST_SPREAD * low:
            # On a coarse grid, so that ranks and runs say the same.
            return {
                "low": math.floor(low / _WIDER * 10) / 10,
                "high": math.ceil(high * _WIDER * 2) / 2,
            }
        return None


_ENOUGH = {
    AHEAD: _MIN_SAMPLED,
    HIDDEN: _MIN_SAMPLED,
    LEFT_OUT: _MIN_SAMPLED,
    GRADIENT_NORM: _MIN_MANY,
    DEAD: _MIN_SHARES,
    SATURATED: _MIN_SHARES,
}


def word(key: Key) -> str:
    """Under which it is known whether there were readings."""
    return f"bounded {' '.join(key)}"


def holds(params: Mapping[str, Any], value: float) -> bool:
    """Whether a number is within the limits of a claim."""
    low, high = params.get("low"), params.get("high")
    if low is not None and low == high:
        return bool(abs(value - low) <= _NEAR * abs(low))
    if params.get("open"):
        return (low is None or value > low) and (high is None or value < high)
    return (low is None or value >= low) and (high is None or value <= high)


def _up(value: float) -> float:
    """No less than ``value``, in three digits."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return math.ceil(value * 10.0**digits) / 10.0**digits


_PLAIN = frozenset(
    {
        NON_FINITE,
        END_TOKEN,
        AHEAD,
        HIDDEN,
        LEFT_OUT,
        MASK,
        PADDING,
        CLIPPED_NORM,
        FLAT,
        CLASSES,
        LEAST_SHARE,
        DEAD,
        SATURATED,
    }
)


def _plain(quantity: str, low: float, high: float) -> Limits | None:
    """Limits that follow from the extremes alone."""
    if quantity in (MASK, HIDDEN, LEFT_OUT):
        return {"low": 1.0} if low >= 1 else None
    if quantity == AHEAD:
        return {"low": low, "high": high} if low == high else None
    if quantity in (NON_FINITE, END_TOKEN, PADDING):
        return {"high": 0.0} if high <= 0 else None
    if quantity == CLASSES:
        return {"low": _FEWEST} if low >= _FEWEST else None
    if quantity == LEAST_SHARE:
        return {"low": float(f"{_VANISHED * low:.1g}")} if low >= _CLEAR_SHARE else None
    if quantity in (DEAD, SATURATED):
        return {"high": _MOST} if high <= _MOST_SEEN else None
    return {"low": 0.0, "open": True} if low > 0 else None


def _sign(
    key: Key, low: float, high: float, values: Mapping[Key, Sequence[float]]
) -> Limits | None:
    """On which side of zero, or of one, the extremes are; None where that may be chance."""
    other = Key(LARGEST if key.quantity == SMALLEST else SMALLEST, key.api, key.name)
    if key.name == "target":  # labels, some of which are left out: not all of them
        lowest = min(values.get(other, (0.0,)))
        is_ignoring = key.quantity == LARGEST and key.api in OVER_CLASSES and lowest < 0
        return {"low": 0.0} if is_ignoring and low >= 0 else None
    if key.quantity == LARGEST:
        limit = _AT_MOST.get(key.api)
        return None if limit is None or high > limit else {"high": limit}
    if key.api in _OF_LOGITS:
        across = list(zip(values[key], values.get(other, values[key])))
        clear = all(-mine >= _CLEAR * max(abs(mine), abs(its)) for mine, its in across)
        # Of a single class the sign is the bias's, so it tells something only where both occur.
        if key.api == BCE_LOGITS:
            clear = clear and all(its > 0 for _, its in across)
        return {"high": 0.0, "open": True} if clear else None
    return {"low": 0.0} if key.api in _OF_PROBABILITIES and low >= 0 else None
