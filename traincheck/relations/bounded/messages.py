"""Limits of numbers, and how numbers and their limits are put into words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.loss_scales import (
    AHEAD,
    CLASSES,
    CLIPPED_NORM,
    DEAD,
    END_TOKEN,
    FLAT,
    GENERATED,
    GRADIENT,
    GRADIENT_NORM,
    HIDDEN,
    IN_A_ROW,
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
    SCALED_LOSS,
    SMALLEST,
    UNPADDED,
    ReadingKey,
    ScalarReading,
)
from traincheck.readings.losses import BCE_LOGITS, CROSS_ENTROPY, OVER_CLASSES
from traincheck.relations.phrasing import display_name
from traincheck.schema.claims import Hypothesis
from traincheck.schema.findings import Symptom, Topic
from traincheck.schema.words import counted

CAUSES = {
    LOSS_SCALE: (
        "The loss is divided by another number (of micro-batches, labels or ranks) than in the "
        "reference, or an update sums more or fewer backward passes. Every gradient is too large "
        "or too small by the same factor: backward() gets {observed}."
    ),
    SMALLEST: (
        "A softmax, sigmoid or ReLU comes before a loss that makes probabilities of logits itself."
    ),
    LARGEST: "Another function changed the input of the loss, or there is no valid label.",
    CLIPPED_NORM: "Clipping found no gradient: it got no parameters, or runs too early.",
    GENERATED: "The maximum length of a generation may be computed from another length.",
    GRADIENT_NORM: "Gradients are far larger than in every reference run.",
    MOVED: (
        "The optimizer may scale its update in another way: a bias correction, an average "
        "or the learning "
        "rate is wrong."
    ),
    FLAT: (
        "An operation between the weights and the loss may have no slope: rounding, argmax, a "
        "comparison, or activations that are all at zero."
    ),
    LEAST_SHARE: (
        "The gradient is lost on its way back: units are saturated or dead, or a custom backward "
        "does not pass it on."
    ),
    DEAD: "Weights or biases may keep the units at zero, for example after a huge update.",
    SATURATED: "The input of the activation is far too large: its weights, or the data.",
    CLASSES: "The model has a single output: its softmax is always 1, and the loss 0.",
    END_TOKEN: (
        "Padding and end of text may have the same id, so that the end token is ignored too. "
        "The model never learns to stop."
    ),
    PADDING: "The mask may have been built before the padding, or consist of ones.",
    HIDDEN: "The mask may not reach the scores, or may come after the softmax.",
    AHEAD: "Labels are not shifted to the next tokens: the model learns to repeat its input.",
    LEFT_OUT: (
        "Labels of padding, or of text that should not be learned (a prompt), are not ignored."
    ),
    MASK: "True and False are swapped in the mask: it masks tokens instead of padding.",
    NON_FINITE: "NaN or infinity may come from a division, root or logarithm, or from the data.",
}


HEADLINES = {
    LEFT_OUT: "{subject} does not ignore labels that it should ignore",
    LOSS_SCALE: "{subject} gets {observed}",
}
FIXES = {  # where there is more to say than of the symptom
    LOSS_SCALE: (
        "Compare the divisor of the loss with the number of backward passes before each "
        "optimizer.step()."
    ),
    HIDDEN: "Set the scores of later positions to -inf before the softmax.",
    AHEAD: "Pass logits[:, :-1] and tokens[:, 1:] to the loss.",
    LEFT_OUT: "Set such labels to ignore_index (-100), also in the collator.",
    PADDING: "Build the mask as (input_ids != pad_token_id), or use the mask of the tokenizer.",
}
SYMPTOMS = {
    SMALLEST: Symptom.LOSS_INPUT,
    LARGEST: Symptom.LOSS_INPUT,
    GRADIENT_NORM: Symptom.GRADIENT_SIZE,
    LEAST_SHARE: Symptom.GRADIENT_SIZE,
    MOVED: Symptom.GRADIENT_SIZE,
    AHEAD: Symptom.LOSS_INPUT,
    HIDDEN: Symptom.UNMASKED,
    LEFT_OUT: Symptom.LOSS_INPUT,
    MASK: Symptom.UNMASKED,
    CLASSES: Symptom.LOSS_INPUT,
    END_TOKEN: Symptom.BATCH_CONTENT,
    PADDING: Symptom.BATCH_CONTENT,
    NON_FINITE: Symptom.NON_FINITE,
}
TOPICS = {
    LOSS_SCALE: Topic.MAGNITUDE,
    SMALLEST: Topic.MAGNITUDE,
    LARGEST: Topic.MAGNITUDE,
    CLIPPED_NORM: Topic.MAGNITUDE,
    GRADIENT_NORM: Topic.MAGNITUDE,
    FLAT: Topic.MAGNITUDE,
    MOVED: Topic.MAGNITUDE,
    LEAST_SHARE: Topic.MAGNITUDE,
    DEAD: Topic.MAGNITUDE,
    SATURATED: Topic.MAGNITUDE,
    MASK: Topic.MASK,
    HIDDEN: Topic.MASK,
    PADDING: Topic.MASK,
}


_DIGITS = 4
_INSTEAD = {
    LEFT_OUT: "it ignores none",
    MASK: "it leaves out all but the padding",
    PADDING: "it attends to padding",
    END_TOKEN: "the end token is ignored too",
}
_PREDICATES = {
    HIDDEN: "gives no weight to later positions",
    LEFT_OUT: "ignores some labels",
    MASK: "leaves out the padding",
    PADDING: "leaves out the padding",
    END_TOKEN: "hold the end token",
}


def clause_of(params: Mapping[str, Any]) -> str:
    """The claim as a clause: ``the norm of the gradients of an update is at most 3``."""
    quantity, high = params["quantity"], params.get("high", math.inf)
    api, name = params.get("api", ""), params.get("name", "")
    # A module is named by itself; a function with the model that it belongs to.
    within = name if api.endswith(".forward") else f"{display_name(api)} in {name}"
    if quantity == DEAD:
        return (
            f"at most {100 * high:g} % of the units of {within} are dead (zero for a whole batch)"
        )
    if quantity == SATURATED:
        return f"at most {100 * high:g} % of the elements of {within} are saturated"
    if quantity == MOVED:
        cls = name.rpartition(".")[2] or "an optimizer"
        return f"in the first updates {cls} moves no weight by more than {_in_rates(high)}"
    return f"{_subject(params)} {_predicate(params)}"


def _in_rates(value: float) -> str:
    return f"{value:.6g} times the learning rate"


def _subject(params: Mapping[str, Any]) -> str:
    """The bounded quantity."""
    quantity, api, name = params["quantity"], params.get("api", ""), params.get("name", "")
    if name == OF_TERMS:
        return "the loss passed to backward()"
    of_batches = f" on batches {name}" if name == UNPADDED else ""
    return {
        LOSS_SCALE: "the losses passed to backward() in one update sum to",
        CLIPPED_NORM: "the norm of the gradients that clip_grad_norm_ finds",
        GENERATED: f"{name} is called to continue a sequence",
        GRADIENT_NORM: "the norm of the gradients of an update",
        NON_FINITE: f"{name} of {api}" if api else name,
        END_TOKEN: f"labels of {api} with padding",
        MASK: f"the mask of {display_name(api)}",
        HIDDEN: display_name(api),
        LEFT_OUT: f"in {IN_A_ROW} calls{of_batches}, {display_name(api)}",
        AHEAD: f"the target of {display_name(api)}",
        PADDING: f"the attention mask of batches of {api} with padding",
        FLAT: "the norm of the gradients, unless the loss is zero,",
        LEAST_SHARE: "the share of each weight in the norm of all gradients",
        CLASSES: f"the number of classes of {display_name(api)}",
    }.get(quantity) or f"the {quantity} element of the {name} of {display_name(api)}"


def _predicate(params: Mapping[str, Any]) -> str:
    """Its limits, as the rest of the clause."""
    low, high = params.get("low"), params.get("high")
    quantity, name = params["quantity"], params.get("name")
    if quantity in _PREDICATES:
        return _PREDICATES[quantity]
    if quantity == AHEAD:
        return f"is {_ahead(low or 0)} the input of the model"
    if name == OF_TERMS:
        return f"is {low:g} times the sum of its terms"
    if quantity == LOSS_SCALE:
        if low == high == 1:
            return "the mean loss (no scaling)"
        times = f"{low:g}" if low == high else f"between {low:g} and {high:g}"
        return f"{times} times the mean loss"
    if quantity == NON_FINITE:
        verb = "are" if name == GRADIENT else "is"
        is_batch = bool(params.get("api"))
        return "holds no NaN and no infinity" if is_batch else f"{verb} never NaN or infinite"
    if quantity == GENERATED:
        return f"at most {high:g} times"
    if quantity == GRADIENT_NORM:
        return f"is at most {high:.3g}"
    if params.get("open"):
        return f"is above {low:g}" if high is None else f"is below {high:g}"
    limits = (("least", low), ("most", high))
    return "is " + " and ".join(f"at {word} {n:g}" for word, n in limits if n is not None)


def _ahead(tokens: float) -> str:
    return f"{tokens:g} token{'' if tokens == 1 else 's'} ahead of"


def observed_text(params: Mapping[str, Any], value: float, backwards: int) -> str:
    """The reading, as a clause."""
    quantity = params["quantity"]
    if quantity == LOSS_SCALE:
        of = "sum of its terms" if params.get("name") == OF_TERMS else "mean loss"
        passes = f" in {counted(backwards, 'backward pass')}" if backwards else ""
        is_undivided = params.get("high") == 1 and 1 < backwards == round(value, _DIGITS)
        undivided = ": it is not divided by their number" if is_undivided else ""
        return f"{value:.6g} times the {of}{passes}{undivided}"
    if quantity == NON_FINITE:
        text = "NaN or infinity"
        return f"{text} after scaling" if params.get("name") == SCALED_LOSS else text
    if quantity == AHEAD:
        return f"it is {_ahead(value)} that"
    if quantity == HIDDEN:
        return f"it gives no weight to {100 * value:.3g} % of them"
    if quantity in (DEAD, SATURATED):
        return f"{100 * value:.3g} %"
    if quantity == MOVED:
        return _in_rates(value)
    return _INSTEAD.get(quantity) or f"{value:.6g}"


def cause_of(params: Mapping[str, Any]) -> str:
    """The likely cause."""
    if params.get("name") == SCALED_LOSS:
        return "The scale of GradScaler, or the loss, is so large that every step is skipped."
    return CAUSES[params["quantity"]]


Limits = dict[str, Any]  # low, high; open: neither is reached; sums: functions that add up terms
_MIN_SAMPLED = 4  # readings that only sampled steps have, and each of many elements
_MIN_READINGS = 7
_MIN_SHARES = 4  # of many units each
_SAME = 2e-6  # relative: a smaller difference is rounding
_NEAR = 1e-2  # relative: a smaller difference satisfies an exact claim
_WIDER = 1.25  # than the readings, where a number varies with the data
_MUCH_WIDER = 30.0
_CLOSE = 2.0  # than the readings, where a sampled view may find a little more
_MOST_SPREAD = 2.5  # of a number that is bounded from both sides
_FEW = 3  # distinct values of the number of batches of an update
_MIN_MANY = 12  # readings, before a norm is bounded
_FEWEST = 2  # classes
_MOST_SEEN, _MOST = 0.5, 0.9  # share of units that is seen, and that is allowed
_CLEAR_SHARE = 1e-4  # of the gradients: smaller shares may be mere noise
_VANISHED = 1e-3  # of the least share that was seen
_CLEAR = 0.3  # of the largest magnitude: then a sign is not coincidence
_MIN_SERIES = 3
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
        self._values: dict[ReadingKey, list[float]] = defaultdict(list)
        self._ends: dict[ReadingKey, list[float]] = defaultdict(list)  # of series
        self._is_plain = True
        self._sums: frozenset[str] = frozenset()
        self._is_echo = False

    def add(self, reading: ScalarReading) -> None:
        """Enter a reading."""
        self._values[reading.key].append(reading.value)
        self._is_plain &= reading.is_plain
        self._sums |= reading.sums
        ends = self._ends[reading.key]
        if reading.begins or not ends:
            ends.append(reading.value)
        ends[-1] = reading.value

    def claims(self, program: str | None, *, is_echo: bool = False) -> Iterator[Hypothesis]:
        """The limits of each key with enough readings; of each key for an echo."""
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
        """Terms for the readings of the run."""
        return map(word, self._values)

    def _tight(self, key: ReadingKey, values: Sequence[float]) -> Limits | None:
        """Limits that few readings support: closer than proposed ones, so that they imply those."""
        low, high = min(values), max(values)
        if key.quantity == GRADIENT_NORM:
            return {"high": _up(_CLOSE * high)} if high > 0 else None
        if key.quantity == LEAST_SHARE:
            return {"low": -_up(-low / _CLOSE)}
        if key.quantity == SMALLEST and key.name == "input" and key.api in _OF_LOGITS and high < 0:
            return {"high": 0.0, "open": True}
        return None

    def _of(self, key: ReadingKey, values: Sequence[float]) -> Limits | None:
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
        """Whether backward gets undivided sums, or multiples of them."""
        values = self._values.get(ReadingKey(LOSS_SCALE, name=OF_TERMS))
        if not values or not self._sums:
            return False
        low, high = min(values), max(values)
        return low >= 1 - _SAME and high - low <= _SAME * high

    def _scale(self, key: ReadingKey, values: Sequence[float]) -> Limits | None:
        if self._is_undivided() != (key.name == OF_TERMS):
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


_ENOUGH = {
    AHEAD: _MIN_SAMPLED,
    HIDDEN: _MIN_SAMPLED,
    LEFT_OUT: _MIN_SAMPLED,
    GRADIENT_NORM: _MIN_MANY,
    DEAD: _MIN_SHARES,
    SATURATED: _MIN_SHARES,
}


def word(key: ReadingKey) -> str:
    """The term for readings of a key."""
    return f"bounded {' '.join(key)}"


def is_satisfied(params: Mapping[str, Any], value: float) -> bool:
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
    key: ReadingKey, low: float, high: float, values: Mapping[ReadingKey, Sequence[float]]
) -> Limits | None:
    """The side of zero, or of one, on which the extremes are; None if that may be chance."""
    other = ReadingKey(LARGEST if key.quantity == SMALLEST else SMALLEST, key.api, key.name)
    if key.name == "target":  # labels, some of which are ignored, but not all
        lowest = min(values.get(other, (0.0,)))
        is_ignoring = key.quantity == LARGEST and key.api in OVER_CLASSES and lowest < 0
        return {"low": 0.0} if is_ignoring and low >= 0 else None
    if key.quantity == LARGEST:
        limit = _AT_MOST.get(key.api)
        return None if limit is None or high > limit else {"high": limit}
    if key.api in _OF_LOGITS:
        across = list(zip(values[key], values.get(other, values[key])))
        clear = all(-mine >= _CLEAR * max(abs(mine), abs(its)) for mine, its in across)
        # With a single class the bias decides the sign, unless both signs occur.
        if key.api == BCE_LOGITS:
            clear = clear and all(its > 0 for _, its in across)
        return {"high": 0.0, "open": True} if clear else None
    return {"low": 0.0} if key.api in _OF_PROBABILITIES and low >= 0 else None
