"""The numbers that stay within limits, one row each: reader, needs, limits and words.

A rule judges the same readings by a fixed limit. A claim is about what ``of`` and ``under`` of a
reading name; its parameters call these ``api`` and ``name``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from traincheck.readings.losses import (
    LOSSES,
    OVER_CLASSES,
    IgnoredLabels,
    LossScale,
    ScaleReading,
    class_counts,
    label_shift,
    loss_elements,
)
from traincheck.readings.reading import EventReader, Key, Reader, Reading, Row
from traincheck.readings.recorded import (
    GRADIENT,
    IN_A_ROW,
    LOSS,
    OF_TERMS,
    SCALED_LOSS,
    UNPADDED,
    Numbers,
)
from traincheck.readings.scalars import (
    FirstUpdates,
    GeneratedTokens,
    GradientSizes,
    NonFinite,
    Padding,
    UnitActivity,
    clipped_norms,
    hidden_positions,
)
from traincheck.schema.claims import Needs, sampled, within_modules
from traincheck.schema.events import StateEvent
from traincheck.schema.findings import Subject, Symptom, Topic
from traincheck.schema.torch_api import ATTENTION, SOFTMAXES, Families
from traincheck.schema.words import counted, display_name

Limits: TypeAlias = "dict[str, Any]"  # low, high; open: neither is reached; sums: of LOSS_SCALE
_DIGITS = 4
_MIN_SAMPLED = 4  # readings that only sampled steps have, and each of many elements
_MIN_READINGS = 7
_MIN_SHARES = 4  # of many units each
_MIN_MANY = 12  # readings, before a norm is bounded
_NEAR = 1e-2  # relative: a smaller difference satisfies an exact claim
_MUCH_WIDER = 30.0  # than the readings
_FEWEST = 2  # classes
_MOST_SEEN, _MOST = 0.5, 0.9  # share of units that is seen, and that is allowed
_CLEAR_SHARE = 1e-4  # of the gradients: smaller shares may be mere noise
_VANISHED = 1e-3  # of the least share that was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Row):
    """A number that stays within limits.

    Attributes:
        needs: of all its readings.
        of_claim: what a claim with these parameters needs instead.
        limits: the limits that the least and the greatest reading support; None if their history
            tells (relations/bounded.py).
        claim: what is claimed: a template, or a function of its parameters.
        observed: what is observed otherwise: a template, or a function of these and a reading.
        place: what a finding points to, if that is no variable of the event, and not the API.
        enough: readings that are needed to claim it.
        patience: readings in a row that are wrong before it is reported.
        differs: what a comparison of two runs calls a number of a batch that they have differently.
            Others are not told.
    """

    claim: str | Callable[[Mapping[str, Any]], str]
    limits: Callable[[float, float], Limits | None] | None = None
    observed: str | Callable[[Mapping[str, Any], Reading], str] = "{value:.6g}"
    of_claim: Callable[[Mapping[str, Any]], Needs] | None = None
    place: Callable[[Key], Subject] | None = None
    headline: str = ""
    fix: str = ""  # where there is more to say than of the symptom
    enough: int = _MIN_READINGS
    patience: int = 1
    differs: str = ""

    def __reduce__(self) -> tuple[Callable[[str], Limit], tuple[str]]:
        """Deciders are pickled in mid run, and some of its functions have no name."""
        return _named, (self.name,)

    def is_known(self, params: Mapping[str, Any]) -> bool:
        return not {"low", "high"}.isdisjoint(params)

    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        low, high = params.get("low"), params.get("high")
        if low is not None and low == high:
            return bool(abs(value - low) <= _NEAR * abs(low))
        if params.get("open"):
            return (low is None or value > low) and (high is None or value < high)
        return (low is None or value >= low) and (high is None or value <= high)

    def says(self, params: Mapping[str, Any]) -> str:
        """The claim as a clause: ``the norm of the gradients of an update is at most 3``."""
        if callable(self.claim):
            return self.claim(params)
        api, name = params.get("api", ""), params.get("name", "")
        low, high = params.get("low"), params.get("high")
        is_open, ends = params.get("open"), (("least", low), ("most", high))
        within = " and ".join(f"at {word} {n:g}" for word, n in ends if n is not None)
        if is_open:
            within = f"above {low:g}" if high is None else f"below {high:g}"
        return self.claim.format(
            of=api,
            api=display_name(api),
            name=name,
            # A module is named by itself; a function with the model that it belongs to.
            place=name if api.endswith(".forward") else f"{display_name(api)} in {name}",
            cls=name.rpartition(".")[2] or "an optimizer",
            batches=f" on batches {name}" if name == UNPADDED else "",
            within=f"is {within}",
            high=math.inf if high is None else high,
            percent=math.inf if high is None else 100 * high,
        )

    def seen(self, params: Mapping[str, Any], reading: Reading) -> str:
        if callable(self.observed):
            return self.observed(params, reading)
        return self.observed.format(value=reading.value, percent=100 * reading.value)

    def cause_of(self, params: Mapping[str, Any]) -> str:
        if params.get("name") == SCALED_LOSS:
            return "The scale of GradScaler, or the loss, is so large that every step is skipped."
        return self.cause

    def at(self, reading: Reading) -> Subject:
        if isinstance(reading.event, StateEvent):
            return Subject(variable=reading.event.name)
        if self.place is not None:
            return self.place(reading.key)
        return Subject(api=reading.of or Families.BACKWARD)

    def stage(self, reading: Reading) -> str:
        return reading.event.stage


_MARKS = Needs(kinds=frozenset({"mark", "step"}))
_BATCHES = Needs(kinds=frozenset({"batch"}))
_OF_BATCHES = _MARKS | Needs(kinds=frozenset({"batch"}), stats=sampled("batch"))
_OF_LOSSES = _MARKS | Needs(calls=frozenset({Families.BACKWARD, Families.SCALE}))
_OF_GRADIENTS = _OF_LOSSES | Needs(
    states=sampled("gradient@backward", "gradient@zero_grad"), stats=sampled("gradient")
)
_OF_MULTIPLES = _OF_LOSSES | _BATCHES | Needs(calls=LOSSES | {Families.OPTIMIZER_STEP})
_ALL_CALLS = _MARKS | Needs(kinds=frozenset({"call"}))


def _of_call(params: Mapping[str, Any]) -> Needs:
    return _MARKS | Needs(calls=frozenset({params["api"]}))


def _of_numbers(params: Mapping[str, Any]) -> Needs:
    return _of_call(params) | Needs(stats=sampled(params["api"]))


def _of_units(params: Mapping[str, Any]) -> Needs:
    calls = within_modules(params["api"]) | {Families.MODULE}
    return _MARKS | Needs(calls=calls, stats=sampled("activation"))


def _of_finite(params: Mapping[str, Any]) -> Needs:
    name = params.get("name")
    if name in (LOSS, SCALED_LOSS):
        return _OF_LOSSES
    return _OF_GRADIENTS if name == GRADIENT else _OF_BATCHES


def _of_multiple(params: Mapping[str, Any]) -> Needs:
    """The number of terms must be known where a sum is divided; a mean needs no numbers."""
    sums = () if params.get("name") == OF_TERMS else params.get("sums", ())
    return _OF_MULTIPLES | Needs(stats=sampled(*sums))


def _elements_within(**limits: float) -> Callable[[float, float], Limits | None]:
    """Limits that hold or not, whatever else the readings are."""
    return partial(_if_within, limits)  # deciders are pickled in mid run


def _if_within(limits: Limits, low: float, high: float) -> Limits | None:
    is_held = low >= limits.get("low", low) and high <= limits.get("high", high)
    return dict(limits) if is_held else None


def _above_zero(low: float, high: float) -> Limits | None:
    return {"low": 0.0, "open": True} if low > 0 else None


def _most_units(low: float, high: float) -> Limits | None:
    return {"high": _MOST} if high <= _MOST_SEEN else None


def _units(key: Key) -> Subject:
    return Subject(api=key.of, module=key.under)


def _loader(key: Key) -> Subject:
    return Subject(variable=key.of)


def _of_part(key: Key) -> Subject:
    if key.under == SCALED_LOSS:
        return Subject(api=Families.SCALE)
    return Subject(variable=key.under) if key.of else Subject(api=Families.BACKWARD)


def _is_finite(params: Mapping[str, Any]) -> str:
    name = params.get("name", "")
    if params.get("api"):
        return f"{name} of {params['api']} holds no NaN and no infinity"
    return f"{name} {'are' if name == GRADIENT else 'is'} never NaN or infinite"


def _not_finite(params: Mapping[str, Any], reading: Reading) -> str:
    return f"NaN or infinity{' after scaling' if params.get('name') == SCALED_LOSS else ''}"


def _multiple(params: Mapping[str, Any]) -> str:
    low, high = params.get("low"), params.get("high")
    if params.get("name") == OF_TERMS:
        return f"the loss passed to backward() is {low:g} times the sum of its terms"
    times = f"{low:g}" if low == high else f"between {low:g} and {high:g}"
    is_plain = low == high == 1
    sums = "the mean loss (no scaling)" if is_plain else f"{times} times the mean loss"
    return f"the losses passed to backward() in one update sum to {sums}"


def _other_multiple(params: Mapping[str, Any], reading: Reading) -> str:
    value = reading.value
    backwards = reading.backwards if isinstance(reading, ScaleReading) else 0
    of = "sum of its terms" if params.get("name") == OF_TERMS else "mean loss"
    passes = f" in {counted(backwards, 'backward pass')}" if backwards else ""
    is_undivided = params.get("high") == 1 and 1 < backwards == round(value, _DIGITS)
    undivided = ": it is not divided by their number" if is_undivided else ""
    return f"{value:.6g} times the {of}{passes}{undivided}"


def _ahead(tokens: float) -> str:
    return f"{tokens:g} token{'' if tokens == 1 else 's'} ahead of"


_ELEMENTS: Callable[[], Reader] = partial(EventReader, loss_elements)
_ALL = (
    Limit(
        name=Numbers.NON_FINITE,
        reader=NonFinite,
        needs=_OF_GRADIENTS | _OF_BATCHES,
        of_claim=_of_finite,
        limits=_elements_within(high=0.0),
        claim=_is_finite,
        observed=_not_finite,
        place=_of_part,
        cause="NaN or infinity may come from a division, root or logarithm, or from the data.",
        symptom=Symptom.NON_FINITE,
    ),
    Limit(
        name=Numbers.LOSS_SCALE,
        reader=LossScale,
        needs=_OF_MULTIPLES,
        of_claim=_of_multiple,
        claim=_multiple,
        observed=_other_multiple,
        headline="{subject} gets {observed}",
        cause=(
            "The loss is divided by another number (of micro-batches, labels or ranks) than in "
            "the reference, or an update sums more or fewer backward passes. Every gradient is "
            "too large or too small by the same factor: backward() gets {observed}."
        ),
        fix=(
            "Compare the divisor of the loss with the number of backward passes before each "
            "optimizer.step()."
        ),
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.SMALLEST,
        reader=_ELEMENTS,
        needs=_MARKS | Needs(calls=LOSSES, stats=sampled(*LOSSES)),
        of_claim=_of_numbers,
        claim="the smallest element of the {name} of {api} {within}",
        cause=(
            "A softmax, sigmoid or ReLU comes before a loss that makes probabilities of logits "
            "itself."
        ),
        symptom=Symptom.LOSS_INPUT,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.LARGEST,
        reader=_ELEMENTS,
        needs=_MARKS | Needs(calls=LOSSES, stats=sampled(*LOSSES)),
        of_claim=_of_numbers,
        claim="the largest element of the {name} of {api} {within}",
        cause="Another function changed the input of the loss, or there is no valid label.",
        symptom=Symptom.LOSS_INPUT,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.CLIPPED_NORM,
        reader=partial(EventReader, clipped_norms),
        needs=_MARKS | Needs(calls=frozenset({Families.CLIP_NORM})),
        limits=_above_zero,
        claim="the norm of the gradients that clip_grad_norm_ finds {within}",
        cause="Clipping found no gradient: it got no parameters, or runs too early.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.GENERATED,
        reader=GeneratedTokens,
        needs=_MARKS | Needs(calls=frozenset({Families.MODULE})),
        of_claim=_of_call,
        claim="{name} is called to continue a sequence at most {high:g} times",
        place=_units,
        cause="The maximum length of a generation may be computed from another length.",
    ),
    Limit(
        name=Numbers.GRADIENT_NORM,
        reader=GradientSizes,
        needs=_OF_GRADIENTS,
        limits=lambda low, high: {"high": float(f"{_MUCH_WIDER * high:.3g}")} if high > 0 else None,
        claim="the norm of the gradients of an update is at most {high:.3g}",
        enough=_MIN_MANY,
        cause="Gradients are far larger than in every reference run.",
        symptom=Symptom.GRADIENT_SIZE,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.LEAST_SHARE,
        reader=GradientSizes,
        needs=_OF_GRADIENTS,
        limits=lambda low, high: (
            {"low": float(f"{_VANISHED * low:.1g}")} if low >= _CLEAR_SHARE else None
        ),
        claim="the share of each weight in the norm of all gradients {within}",
        patience=5,
        cause=(
            "The gradient is lost on its way back: units are saturated or dead, or a custom "
            "backward does not pass it on."
        ),
        symptom=Symptom.GRADIENT_SIZE,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.FLAT,
        reader=GradientSizes,
        needs=_OF_GRADIENTS,
        limits=_above_zero,
        claim="the norm of the gradients, unless the loss is zero, {within}",
        patience=5,
        cause=(
            "An operation between the weights and the loss may have no slope: rounding, argmax, "
            "a comparison, or activations that are all at zero."
        ),
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.MOVED,
        reader=FirstUpdates,
        needs=_MARKS
        | Needs(
            states=sampled("parameter@step"),
            kinds=frozenset({"checkpoint", "optimizer"}),
            stats=sampled("parameter") | {"update"},
        ),
        claim="in the first updates {cls} moves no weight by more than {high:.6g} times the "
        "learning rate",
        observed="{value:.6g} times the learning rate",
        cause=(
            "The optimizer may scale its update in another way: a bias correction, an average "
            "or the learning rate is wrong."
        ),
        symptom=Symptom.GRADIENT_SIZE,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.DEAD,
        reader=UnitActivity,
        needs=_ALL_CALLS,
        of_claim=_of_units,
        limits=_most_units,
        claim="at most {percent:g} % of the units of {place} are dead (zero for a whole batch)",
        observed="{percent:.3g} %",
        place=_units,
        enough=_MIN_SHARES,
        patience=4,
        cause="Weights or biases may keep the units at zero, for example after a huge update.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.SATURATED,
        reader=UnitActivity,
        needs=_ALL_CALLS,
        of_claim=_of_units,
        limits=_most_units,
        claim="at most {percent:g} % of the elements of {place} are saturated",
        observed="{percent:.3g} %",
        place=_units,
        enough=_MIN_SHARES,
        patience=4,
        cause="The input of the activation is far too large: its weights, or the data.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.CLASSES,
        reader=partial(EventReader, class_counts),
        needs=_MARKS | Needs(calls=LOSSES),
        of_claim=_of_call,
        limits=_elements_within(low=_FEWEST),
        claim="the number of classes of {api} {within}",
        cause="The model has a single output: its softmax is always 1, and the loss 0.",
        symptom=Symptom.LOSS_INPUT,
    ),
    Limit(
        name=Numbers.AHEAD,
        reader=partial(EventReader, label_shift),
        needs=_OF_BATCHES | Needs(calls=OVER_CLASSES | {Families.MODULE}),
        of_claim=lambda params: (
            _of_numbers(params) | _OF_BATCHES | Needs(calls=frozenset({Families.MODULE}))
        ),
        limits=lambda low, high: {"low": low, "high": high} if low == high else None,
        claim=lambda params: (
            f"the target of {display_name(params['api'])} is {_ahead(params.get('low') or 0)} the "
            "input of the model"
        ),
        observed=lambda params, reading: f"it is {_ahead(reading.value)} that",
        enough=_MIN_SAMPLED,
        cause="Labels are not shifted to the next tokens: the model learns to repeat its input.",
        fix="Pass logits[:, :-1] and tokens[:, 1:] to the loss.",
        symptom=Symptom.LOSS_INPUT,
    ),
    Limit(
        name=Numbers.LEFT_OUT,
        reader=IgnoredLabels,
        needs=_BATCHES | Needs(calls=OVER_CLASSES),
        of_claim=lambda params: _of_numbers(params) | _BATCHES,
        limits=_elements_within(low=1.0),
        claim=f"in {IN_A_ROW} calls{{batches}}, {{api}} ignores some labels",
        observed="it ignores none",
        enough=_MIN_SAMPLED,
        headline="{subject} does not ignore labels that it should ignore",
        cause=(
            "Labels of padding, or of text that should not be learned (a prompt), are not ignored."
        ),
        fix="Set such labels to ignore_index (-100), also in the collator.",
        symptom=Symptom.LOSS_INPUT,
    ),
    Limit(
        name=Numbers.HIDDEN,
        reader=partial(EventReader, hidden_positions),
        needs=_MARKS | Needs(calls=SOFTMAXES),
        of_claim=_of_numbers,
        limits=_elements_within(low=1.0),
        claim="{api} gives no weight to later positions",
        observed="it gives no weight to {percent:.3g} % of them",
        enough=_MIN_SAMPLED,
        cause="The mask may not reach the scores, or may come after the softmax.",
        fix="Set the scores of later positions to -inf before the softmax.",
        symptom=Symptom.UNMASKED,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.MASK,
        reader=Padding,
        needs=_OF_BATCHES | Needs(calls=frozenset({ATTENTION})),
        of_claim=lambda params: _of_numbers(params) | _OF_BATCHES,
        limits=_elements_within(low=1.0),
        claim="the mask of {api} leaves out the padding",
        observed="it leaves out all but the padding",
        cause="True and False are swapped in the mask: it masks tokens instead of padding.",
        symptom=Symptom.UNMASKED,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.PADDING,
        reader=Padding,
        needs=_OF_BATCHES,
        limits=_elements_within(high=0.0),
        claim="the attention mask of batches of {of} with padding leaves out the padding",
        observed="it attends to padding",
        place=_loader,
        patience=3,
        cause="The mask may have been built before the padding, or consist of ones.",
        fix="Build the mask as (input_ids != pad_token_id), or use the mask of the tokenizer.",
        symptom=Symptom.BATCH_CONTENT,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.END_TOKEN,
        reader=Padding,
        needs=_OF_BATCHES,
        limits=_elements_within(high=0.0),
        claim="labels of {of} with padding hold the end token",
        observed="the end token is ignored too",
        place=_loader,
        patience=3,
        cause=(
            "Padding and end of text may have the same id, so that the end token is ignored "
            "too. The model never learns to stop."
        ),
        symptom=Symptom.BATCH_CONTENT,
    ),
)
QUANTITIES: Mapping[str, Limit] = {each.name: each for each in _ALL}


def _named(name: str) -> Limit:
    return QUANTITIES[name]
