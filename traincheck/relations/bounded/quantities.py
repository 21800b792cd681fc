"""The numbers that stay within limits, one row each, and how they are put into words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.readings.loss_scales import (
    GRADIENT,
    IN_A_ROW,
    OF_TERMS,
    SCALED_LOSS,
    UNPADDED,
    Numbers,
    ScaleReading,
)
from traincheck.readings.provider import (
    EVERYTHING,
)
from traincheck.readings.reading import (
    Reader,
    Reading,
)
from traincheck.readings.scalars import (
    ScalarReadings,
)
from traincheck.relations.base import (
    counterexample,
)
from traincheck.relations.learned import (
    Row,
)
from traincheck.relations.phrasing import (
    display_name,
)
from traincheck.schema.claims import (
    Needs,
)
from traincheck.schema.events import (
    StateEvent,
)
from traincheck.schema.findings import (
    Example,
    Subject,
    Symptom,
    Topic,
)
from traincheck.schema.torch_api import (
    Families,
)
from traincheck.schema.words import (
    counted,
)

_DIGITS = 4
_MIN_SAMPLED = 4  # readings that only sampled steps have, and each of many elements
_MIN_READINGS = 7
_MIN_SHARES = 4  # of many units each
_MIN_MANY = 12  # readings, before a norm is bounded
_NEAR = 1e-2  # relative: a smaller difference satisfies an exact claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Row):
    """A number that stays within limits. What a trace must hold to read it depends on the claim.

    Attributes:
        predicate: what a claim says of it, if it is no comparison.
        instead: what is observed where that is wrong.
        enough: readings that are needed to claim it.
        patience: readings in a row that are wrong before it is reported.
    """

    needs: Needs = EVERYTHING
    reader: Callable[[], Reader] = ScalarReadings
    headline: str = ""
    fix: str = ""  # where there is more to say than of the symptom
    predicate: str = ""
    instead: str = ""
    enough: int = _MIN_READINGS
    patience: int = 1

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
        return _clause(params)

    def cause_of(self, params: Mapping[str, Any]) -> str:
        if params.get("name") == SCALED_LOSS:
            return "The scale of GradScaler, or the loss, is so large that every step is skipped."
        return self.cause

    def negative(self, params: Mapping[str, Any], reading: Reading) -> Example:
        event, key = reading.event, reading.key
        subject = Subject(api=key.of or Families.BACKWARD)
        if isinstance(event, StateEvent):
            subject = Subject(variable=event.name)
        elif key.what in (Numbers.GENERATED, Numbers.DEAD, Numbers.SATURATED):
            subject = Subject(api=key.of, module=key.under)
        elif key.what in (Numbers.END_TOKEN, Numbers.PADDING):
            subject = Subject(variable=key.of)
        elif key.under == SCALED_LOSS:
            subject = Subject(api=Families.SCALE)
        elif key.what == Numbers.NON_FINITE and key.of:
            subject = Subject(variable=key.under)
        return counterexample(
            event,
            subject,
            self.says(params),
            _observed(params, reading),
            self.symptom,
            stage=event.stage,
        ).replace(topic=self.topic)


_ALL = (
    Limit(
        name=Numbers.NON_FINITE,
        cause="NaN or infinity may come from a division, root or logarithm, or from the data.",
        symptom=Symptom.NON_FINITE,
    ),
    Limit(
        name=Numbers.LOSS_SCALE,
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
        cause=(
            "A softmax, sigmoid or ReLU comes before a loss that makes probabilities of logits "
            "itself."
        ),
        symptom=Symptom.LOSS_INPUT,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.LARGEST,
        cause="Another function changed the input of the loss, or there is no valid label.",
        symptom=Symptom.LOSS_INPUT,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.CLIPPED_NORM,
        cause="Clipping found no gradient: it got no parameters, or runs too early.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.GENERATED,
        cause="The maximum length of a generation may be computed from another length.",
    ),
    Limit(
        name=Numbers.GRADIENT_NORM,
        enough=_MIN_MANY,
        cause="Gradients are far larger than in every reference run.",
        symptom=Symptom.GRADIENT_SIZE,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.LEAST_SHARE,
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
        patience=5,
        cause=(
            "An operation between the weights and the loss may have no slope: rounding, argmax, "
            "a comparison, or activations that are all at zero."
        ),
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.MOVED,
        cause=(
            "The optimizer may scale its update in another way: a bias correction, an average "
            "or the learning rate is wrong."
        ),
        symptom=Symptom.GRADIENT_SIZE,
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.DEAD,
        enough=_MIN_SHARES,
        patience=4,
        cause="Weights or biases may keep the units at zero, for example after a huge update.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.SATURATED,
        enough=_MIN_SHARES,
        patience=4,
        cause="The input of the activation is far too large: its weights, or the data.",
        topic=Topic.MAGNITUDE,
    ),
    Limit(
        name=Numbers.CLASSES,
        cause="The model has a single output: its softmax is always 1, and the loss 0.",
        symptom=Symptom.LOSS_INPUT,
    ),
    Limit(
        name=Numbers.AHEAD,
        enough=_MIN_SAMPLED,
        cause="Labels are not shifted to the next tokens: the model learns to repeat its input.",
        fix="Pass logits[:, :-1] and tokens[:, 1:] to the loss.",
        symptom=Symptom.LOSS_INPUT,
    ),
    Limit(
        name=Numbers.LEFT_OUT,
        predicate="ignores some labels",
        instead="it ignores none",
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
        predicate="gives no weight to later positions",
        enough=_MIN_SAMPLED,
        cause="The mask may not reach the scores, or may come after the softmax.",
        fix="Set the scores of later positions to -inf before the softmax.",
        symptom=Symptom.UNMASKED,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.MASK,
        predicate="leaves out the padding",
        instead="it leaves out all but the padding",
        cause="True and False are swapped in the mask: it masks tokens instead of padding.",
        symptom=Symptom.UNMASKED,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.PADDING,
        predicate="leaves out the padding",
        instead="it attends to padding",
        patience=3,
        cause="The mask may have been built before the padding, or consist of ones.",
        fix="Build the mask as (input_ids != pad_token_id), or use the mask of the tokenizer.",
        symptom=Symptom.BATCH_CONTENT,
        topic=Topic.MASK,
    ),
    Limit(
        name=Numbers.END_TOKEN,
        predicate="hold the end token",
        instead="the end token is ignored too",
        patience=3,
        cause=(
            "Padding and end of text may have the same id, so that the end token is ignored "
            "too. The model never learns to stop."
        ),
        symptom=Symptom.BATCH_CONTENT,
    ),
)
QUANTITIES: Mapping[str, Limit] = {each.name: each for each in _ALL}


def _clause(params: Mapping[str, Any]) -> str:
    """The claim as a clause: ``the norm of the gradients of an update is at most 3``."""
    quantity, high = params["quantity"], params.get("high", math.inf)
    api, name = params.get("api", ""), params.get("name", "")
    # A module is named by itself; a function with the model that it belongs to.
    within = name if api.endswith(".forward") else f"{display_name(api)} in {name}"
    if quantity == Numbers.DEAD:
        return (
            f"at most {100 * high:g} % of the units of {within} are dead (zero for a whole batch)"
        )
    if quantity == Numbers.SATURATED:
        return f"at most {100 * high:g} % of the elements of {within} are saturated"
    if quantity == Numbers.MOVED:
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
        Numbers.LOSS_SCALE: "the losses passed to backward() in one update sum to",
        Numbers.CLIPPED_NORM: "the norm of the gradients that clip_grad_norm_ finds",
        Numbers.GENERATED: f"{name} is called to continue a sequence",
        Numbers.GRADIENT_NORM: "the norm of the gradients of an update",
        Numbers.NON_FINITE: f"{name} of {api}" if api else name,
        Numbers.END_TOKEN: f"labels of {api} with padding",
        Numbers.MASK: f"the mask of {display_name(api)}",
        Numbers.HIDDEN: display_name(api),
        Numbers.LEFT_OUT: f"in {IN_A_ROW} calls{of_batches}, {display_name(api)}",
        Numbers.AHEAD: f"the target of {display_name(api)}",
        Numbers.PADDING: f"the attention mask of batches of {api} with padding",
        Numbers.FLAT: "the norm of the gradients, unless the loss is zero,",
        Numbers.LEAST_SHARE: "the share of each weight in the norm of all gradients",
        Numbers.CLASSES: f"the number of classes of {display_name(api)}",
    }.get(quantity) or f"the {quantity} element of the {name} of {display_name(api)}"


def _predicate(params: Mapping[str, Any]) -> str:
    """Its limits, as the rest of the clause."""
    low, high = params.get("low"), params.get("high")
    quantity, name = params["quantity"], params.get("name")
    if QUANTITIES[quantity].predicate:
        return QUANTITIES[quantity].predicate
    if quantity == Numbers.AHEAD:
        return f"is {_ahead(low or 0)} the input of the model"
    if name == OF_TERMS:
        return f"is {low:g} times the sum of its terms"
    if quantity == Numbers.LOSS_SCALE:
        if low == high == 1:
            return "the mean loss (no scaling)"
        times = f"{low:g}" if low == high else f"between {low:g} and {high:g}"
        return f"{times} times the mean loss"
    if quantity == Numbers.NON_FINITE:
        verb = "are" if name == GRADIENT else "is"
        is_batch = bool(params.get("api"))
        return "holds no NaN and no infinity" if is_batch else f"{verb} never NaN or infinite"
    if quantity == Numbers.GENERATED:
        return f"at most {high:g} times"
    if quantity == Numbers.GRADIENT_NORM:
        return f"is at most {high:.3g}"
    if params.get("open"):
        return f"is above {low:g}" if high is None else f"is below {high:g}"
    limits = (("least", low), ("most", high))
    return "is " + " and ".join(f"at {word} {n:g}" for word, n in limits if n is not None)


def _ahead(tokens: float) -> str:
    return f"{tokens:g} token{'' if tokens == 1 else 's'} ahead of"


def _observed(params: Mapping[str, Any], reading: Reading) -> str:
    """The reading, as a clause."""
    quantity, value = params["quantity"], reading.value
    backwards = reading.backwards if isinstance(reading, ScaleReading) else 0
    if quantity == Numbers.LOSS_SCALE:
        of = "sum of its terms" if params.get("name") == OF_TERMS else "mean loss"
        passes = f" in {counted(backwards, 'backward pass')}" if backwards else ""
        is_undivided = params.get("high") == 1 and 1 < backwards == round(value, _DIGITS)
        undivided = ": it is not divided by their number" if is_undivided else ""
        return f"{value:.6g} times the {of}{passes}{undivided}"
    if quantity == Numbers.NON_FINITE:
        text = "NaN or infinity"
        return f"{text} after scaling" if params.get("name") == SCALED_LOSS else text
    if quantity == Numbers.AHEAD:
        return f"it is {_ahead(value)} that"
    if quantity == Numbers.HIDDEN:
        return f"it gives no weight to {100 * value:.3g} % of them"
    if quantity in (Numbers.DEAD, Numbers.SATURATED):
        return f"{100 * value:.3g} %"
    if quantity == Numbers.MOVED:
        return _in_rates(value)
    return QUANTITIES[quantity].instead or f"{value:.6g}"
