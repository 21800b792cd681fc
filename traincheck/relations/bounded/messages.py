"""How numbers and their limits are put into words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.relations.phrasing import short
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
        "The loss is divided by another number than it was (of micro-batches, labels or ranks), or "
        "an update adds up more or fewer backward passes than it did. Every gradient is too large "
        "or too small by the same factor: backward is given {observed}."
    ),
    SMALLEST: (
        "A softmax, sigmoid or ReLU comes before a loss that makes probabilities of logits itself."
    ),
    LARGEST: "The loss is given what another function has changed, or no valid label at all.",
    CLIPPED_NORM: "Clipping found no gradient: it got no parameters, or comes too early.",
    GENERATED: "The limit of a generation is computed from another length than it was.",
    GRADIENT_NORM: "Gradients are far larger than in every reference run.",
    MOVED: (
        "The update of the optimizer is scaled wrongly: a correction for its first steps, an "
        "average or the rate itself is not what it is taken for."
    ),
    FLAT: (
        "What lies between the weights and the loss has no slope: rounding, argmax, a comparison, "
        "or a graph of which every path is off."
    ),
    LEAST_SHARE: (
        "The gradient is lost on its way back: saturated or dead units lie between, or a backward "
        "that was written by hand does not pass it on."
    ),
    DEAD: "Weights or biases keep the units off, as an initialization or a huge update may.",
    SATURATED: "What goes into the activation is far too large: its weights, or its input.",
    CLASSES: "The model has a single output: its softmax is always 1, and the loss 0.",
    END_TOKEN: (
        "Padding and end of text have one id, so that the end token leaves the labels with the "
        "padding: the model never learns to stop."
    ),
    PADDING: "The mask was made before the padding, or is made of ones.",
    HIDDEN: "The mask does not reach the scores: it is not applied, or comes after the softmax.",
    AHEAD: "Labels are not shifted to the next tokens: the model learns to repeat its input.",
    LEFT_OUT: (
        "Padding of labels, or what is not to be learned (a prompt), has an index that counts."
    ),
    MASK: "True and False of the mask are exchanged: tokens are left out, and padding is not.",
    NON_FINITE: "NaN or infinity comes from a division, root or logarithm, or from the data.",
}


HEADLINES = {
    LEFT_OUT: "{subject} counts labels that it is to leave out",
    LOSS_SCALE: "{subject} is given {observed}",
}
FIXES = {  # where there is more to say than of the symptom
    LOSS_SCALE: (
        "Compare what the loss is divided by with how many backward passes come before each "
        "optimizer.step()."
    ),
    HIDDEN: "Set the scores of later positions to -inf before the softmax.",
    AHEAD: "Give the loss the tokens from the second on, for all logits but the last.",
    LEFT_OUT: "Fill such labels with ignore_index (-100), in the collator, too.",
    PADDING: "Build the mask as (input_ids != pad_token_id), or take the one the tokenizer gives.",
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
    LEFT_OUT: "none is left out",
    MASK: "it leaves out all but the padding",
    PADDING: "it attends to padding",
    END_TOKEN: "the end token is left out too",
}
_SAYINGS = {
    LEFT_OUT: "are some that it leaves out",
    MASK: "leaves out the padding",
    PADDING: "leaves it out",
    END_TOKEN: "hold the end token",
}


def what(params: Mapping[str, Any]) -> str:
    """What is bounded, in words."""
    quantity, api, name = params["quantity"], params.get("api", ""), params.get("name", "")
    # A module is named by itself; a function with the model that it belongs to.
    within = name if api.endswith(".forward") else f"{short(api)} in {name}"
    if name == OF_TERMS:
        return "the loss that backward is given"
    of_batches = f" on batches {name}" if name == UNPADDED else ""
    return {
        LOSS_SCALE: "the losses that backward is given over an update add up to",
        CLIPPED_NORM: "the norm of the gradients that clip_grad_norm_ finds",
        GENERATED: f"{name} is called to go on with a sequence",
        GRADIENT_NORM: "the norm of the gradients of an update",
        NON_FINITE: f"{name} of {api}" if api else name,
        END_TOKEN: f"labels of {api} that have padding",
        MASK: f"the mask of {short(api)}",
        HIDDEN: f"the share of later positions that {short(api)} gives no weight to",
        LEFT_OUT: f"among the labels of {IN_A_ROW} calls of {short(api)}{of_batches}",
        AHEAD: f"the target of {short(api)}",
        PADDING: f"the attention mask in batches of {api} that have padding",
        MOVED: f"the farthest that one of the first updates of "
        f"{name.rpartition('.')[2] or 'an optimizer'} moves a weight, in learning rates,",
        FLAT: "the norm of the gradients, unless the loss is zero,",
        LEAST_SHARE: "the share of the norm of all gradients that each weight has",
        DEAD: f"the share of units that {within} keeps off for a whole batch",
        SATURATED: f"the share of elements that {within} puts at its limits",
        CLASSES: f"the number of classes that {short(api)} chooses among",
    }.get(quantity) or f"the {quantity} element of {name} of {short(api)}"


def limits_text(params: Mapping[str, Any]) -> str:
    """By what, as the rest of the sentence."""
    low, high = params.get("low"), params.get("high")
    if params["quantity"] in _SAYINGS:
        return _SAYINGS[params["quantity"]]
    if params["quantity"] == AHEAD:
        return f"is {_ahead(low or 0)} what the model is given"
    if params.get("name") == OF_TERMS:
        return f"is {low:g} times the sum of its terms"
    if params["quantity"] == LOSS_SCALE:
        times = f"{low:g}" if low == high else f"between {low:g} and {high:g}"
        return f"{times} times the mean loss"
    if params["quantity"] == NON_FINITE:
        verb = "are" if params.get("name") == GRADIENT else "is"
        return (
            "holds no NaN and no infinity" if params.get("api") else f"{verb} never NaN or infinite"
        )
    if params["quantity"] == GENERATED:
        return f"at most {high:g} times"
    if params["quantity"] == GRADIENT_NORM:
        return f"is at most {high:.3g}"
    if params.get("open"):
        return f"is above {low:g}" if high is None else f"is below {high:g}"
    parts = [
        f"at {word} {limit:g}"
        for word, limit in (("least", low), ("most", high))
        if limit is not None
    ]
    return f"is {' and '.join(parts)}"


def _ahead(tokens: float) -> str:
    return f"{tokens:g} token{'' if tokens == 1 else 's'} ahead of"


def observed_text(params: Mapping[str, Any], value: float, backwards: int) -> str:
    """What was read instead."""
    quantity = params["quantity"]
    if quantity == LOSS_SCALE:
        of = "sum of its terms" if params.get("name") == OF_TERMS else "mean loss"
        passes = f" in {counted(backwards, 'backward pass')}" if backwards else ""
        is_undivided = params.get("high") == 1 and 1 < backwards == round(value, _DIGITS)
        undivided = ": it is not divided by their number" if is_undivided else ""
        return f"{value:.6g} times the {of}{passes}{undivided}"
    if quantity == NON_FINITE:
        said = "NaN or infinity"
        return f"{said} after scaling" if params.get("name") == SCALED_LOSS else said
    if quantity == AHEAD:
        return f"it is {_ahead(value)} that"
    return _INSTEAD.get(quantity) or f"{value:.6g}"


def cause_of(params: Mapping[str, Any]) -> str:
    """The likely cause."""
    if params.get("name") == SCALED_LOSS:
        return "The scale of GradScaler, or the loss, is so large that every step is skipped."
    return CAUSES[params["quantity"]]
