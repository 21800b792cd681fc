"""The relation *bounded*: numbers that stay within limits in every step of a program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.losses import BCE_LOGITS, CROSS_ENTROPY, OVER_CLASSES, ScaleReading
from traincheck.readings.quantities import QUANTITIES, Limits
from traincheck.readings.reading import Key, Reading
from traincheck.readings.recorded import OF_TERMS, Numbers
from traincheck.relations.base import SATISFIED
from traincheck.relations.iterations import Examples, ShortUpdates
from traincheck.relations.learned import Learned, ReadingDecider, ReadingProposer, negative
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Example

_SAME = 2e-6  # relative: a smaller difference is rounding
_WIDER = 1.25  # than the readings, where a number varies with the data
_CLOSE = 2.0  # than the readings, where a sampled view may find a little more
_MOST_SPREAD = 2.5  # of a number that is bounded from both sides
_FEW = 3  # distinct values of the number of batches of an update
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


_COUNTED = 1.4  # factor from which on another number of terms was summed


class Bounded(Learned):
    """A number stays within limits.

    Claims:
        - The loss passed to backward() over one update is a fixed multiple of the mean loss, or the
          sum of its terms is not divided.
        - Logits reach below zero. Inputs of a loss never do, or never exceed zero, or one.
        - The norm that clipping finds is above zero.
        - Losses, gradients and batches are finite.
        - A model is called at most n times to continue a sequence.
        - The norm of the gradients is not far above its norm in the reference. It is above zero
          unless the loss is zero. No weight has next to none of it.
        - The first ten updates move no weight by much more than the learning rate, if the first
          update moves some by exactly the learning rate.
        - Most units of an activation are neither dead for a whole batch nor saturated.
        - cross_entropy has two classes or more. Its target is n tokens ahead of the model's input
          and ignores some labels, such as padding. Labels with padding hold the end token.
        - The mask of a batch, and of attention, leaves out the padding. Attention weights leave out
          later positions.

    Example:
        ``In train.py, the losses passed to backward() in one update sum to the mean loss (no
        scaling).`` It breaks when the loss is not divided by the number of micro-batches.

    Evidence:
        One example for each reading; two for a share of units, as it covers many. Limits are no
        closer than the program intends them: a sign, an exact multiple, a number of tokens that
        most series end with. Other limits are 1.25 times as wide as the readings, 30 times for the
        norm of gradients (which takes 12 readings), 1,000 times for the share of a weight.
        Vanishing gradients count from the fifth time in a row, dead units from the fourth. An
        update with less of a loss (the last of an epoch) counts only when an update of another
        iteration follows.

    Chance:
        A coin for each example.

    Not claimed:
        - How large a loss is.
        - Anything about other programs.
        - Losses that are sums of several functions, scaled for half precision, or searched with
          (LBFGS).
        - Logits that are all one number.
        - Labels of batches without padding, if the ignored labels are padding.
    """

    name = term = "bounded"
    rows = QUANTITIES
    named = ("quantity", "api", "name")

    def proposer(self) -> BoundedProposer:
        return BoundedProposer(self)

    def decider(self, claims: Sequence[Hypothesis]) -> BoundedDecider:
        return BoundedDecider(self, claims)

    def needs(self, claim: Hypothesis) -> Needs:
        row = QUANTITIES[claim.params["quantity"]]
        return row.needs if row.of_claim is None else row.of_claim(claim.params)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Narrower limits of the same numbers imply wider ones."""
        mine, its = dict(claim.params), dict(other.params)
        is_above = mine.pop("low", -math.inf) >= its.pop("low", -math.inf)
        is_below = mine.pop("high", math.inf) <= its.pop("high", math.inf)
        return claim.relation == other.relation and mine == its and is_above and is_below


class BoundedProposer(ReadingProposer):
    """Proposes limits for each key that was read often enough."""

    def __init__(self, relation: Bounded) -> None:
        super().__init__(relation)
        self._history = ReadingHistory()

    def hypotheses(self) -> Iterator[Hypothesis]:
        return self._history.claims(self._program.name)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """Claims that this run supports, though it is too short to propose them."""
        return self._history.claims(self._program.name, is_echo=True)

    def _enter(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._values.setdefault(reading.key, {})
            self._history.add(reading)


class BoundedDecider(ReadingDecider):
    """Decides each reading when it is made. A short update at the end of a run is not judged."""

    def __init__(self, relation: Bounded, claims: Sequence[Hypothesis]) -> None:
        super().__init__(relation, claims)
        self._waiting: dict[int, list[Example]] = defaultdict(list)
        self._short = ShortUpdates()

    def observe(self, event: Event) -> Examples:
        self._short.observe(event)
        if isinstance(event, StepEvent) and not event.recorded:
            self._waiting.clear()
        return super().observe(event)

    def _judge(self, index: int, params: Mapping[str, Any], reading: Reading) -> Examples:
        if isinstance(reading, ScaleReading):
            return self._scale(index, params, reading)
        row = QUANTITIES[reading.what]
        if row.allows(params, reading.value):
            self._waiting.pop(index, None)
            return ((index, SATISFIED),) * reading.weight
        waiting = self._waiting[index]
        waiting.append(negative(row, params, reading))
        return ((index, waiting.pop(0)),) if len(waiting) >= row.patience else ()

    def _scale(self, index: int, params: Mapping[str, Any], reading: ScaleReading) -> Examples:
        """The loss passed to backward() may be smaller in the last update of an epoch."""
        low, high = params["low"], params["high"]
        is_told = reading.is_plain or low == high
        if not (is_told and reading.sums <= set(params.get("sums", ()))):
            return ()
        row = QUANTITIES[reading.what]
        is_held = row.allows(params, reading.value)
        # A term that was added: a batch more or less would double or halve it
        is_near = low == high and low / _COUNTED < reading.value < low * _COUNTED
        if reading.value < low and not is_held and not is_near:
            return self._short.add_short(index, negative(row, params, reading))
        self._short.clear_short(index)
        if is_held:
            return ((index, SATISFIED),)
        return () if is_near else ((index, negative(row, params, reading)),)


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
        if key.what == Numbers.MOVED:
            is_even = _RATE[0] <= values[0] <= _RATE[1] and _RATES[0] <= low <= high <= _RATES[1]
            return {"high": math.ceil(_WIDER * high * 10) / 10} if is_even else None
        of_extremes = QUANTITIES[key.what].limits
        if of_extremes is not None:
            return of_extremes(low, high)
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
