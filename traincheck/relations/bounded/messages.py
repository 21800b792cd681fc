"""How numbers and their limits are put into words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from traincheck.relations.phrasing import display_name
from traincheck.relations.readings.reading import (
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
)
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
