"""Kinds of facts of functions and models: a row for each, with a function from numbers to a class.

The first class of a kind is the calm one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from traincheck.facts.kinds import Kind

FEW = 3  # steps: fewer show no habit

Numbers: TypeAlias = Mapping[str, float]
Classify: TypeAlias = Callable[[Numbers], "str | None"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fact of functions.

    Attributes:
        kind: its first class is the calm one, and its sentence names ``{lines}``.
        looks: what is looked at.
        classify: the class of a step, or None if the step does not show it.
        least: steps that a line must have.
    """

    kind: Kind
    looks: Sequence[str]
    classify: Classify
    least: int = 1


def _softmax_size(n: Numbers) -> str:
    return "one element" if n["over"] == 1 else "several elements"


def _softmax_weights(n: Numbers) -> str | None:
    if n["over"] == 1 or "sharp" not in n or "even" not in n:
        return None
    return "one takes all" if n["sharp"] > 0.98 else "even" if n["even"] > 0.98 else "between"  # noqa: PLR2004


def _reduction_size(n: Numbers) -> str | None:
    return None if n["of"] <= 1 else "one element" if n["over"] == 1 else "several elements"


def _mixed(n: Numbers) -> str:
    return "mixed" if n["mixes"] else "apart"


def _limit(n: Numbers) -> str | None:
    return _shares(n.get("changed"), "some", "nothing", "everything")


def _rectifier(n: Numbers) -> str | None:
    return _shares(n.get("zero"), "some", "none", "all")


def _mask(n: Numbers) -> str | None:
    if n.get("binary", 1.0) < 1:
        return None  # a factor of other numbers is no mask
    return _shares(n.get("hidden"), "some", "nothing", "everything")


def _fill(n: Numbers) -> str | None:
    fill = n.get("fill")
    if fill is None:
        return None
    if fill <= -50:  # noqa: PLR2004
        return "far below 0"
    return "0" if fill == 0 else "near 0" if abs(fill) < 0.1 else "another"  # noqa: PLR2004


def _shares(share: float | None, some: str, none: str, whole: str) -> str | None:
    if share is None:
        return None
    return none if share == 0 else whole if share == 1 else some


def _singular(n: Numbers) -> str | None:
    return None if "near" not in n else "near 0" if n["near"] > 0 else "away from 0"


def _target(n: Numbers) -> str:
    if n.get("feature"):
        return "a feature"
    found = [name for name in ("shift_0", "shift_1", "shift_-1", "shift_2") if n.get(name) == 1]
    return _SHIFTED[found[0]] if found else "not found"


_SHIFTED = {
    "shift_0": "the same place",
    "shift_1": "one place later",
    "shift_-1": "one place earlier",
    "shift_2": "two places later",
}


def _ignored(n: Numbers) -> str | None:
    share = n.get("ignored")
    if share is None:
        return None
    return "none" if share == 0 else "nearly all" if share > 0.9 else "a part"  # noqa: PLR2004


def _hit(n: Numbers) -> str | None:
    return None if "equal" not in n else "equal" if n["equal"] else "different"


def _targets_again(n: Numbers) -> str | None:
    return None if "repeats" not in n else "the same" if n["repeats"] else "change"


def _target_gradient(n: Numbers) -> str:
    return "yes" if n["gradient_of_target"] and n["gradient"] else "no"


def _constant_target(n: Numbers) -> str | None:
    if n.get("elements", 0) < SOME or "target_deviation" not in n:
        return None
    return "one value" if n["target_low"] == n["target_high"] else "several values"


SOME = 8  # elements: fewer may be one value by chance


def _padding(n: Numbers) -> str | None:
    size = n.get("size_of_padding")
    return None if size is None else "zero" if size == 0 else "not zero"


def _ids(n: Numbers) -> str | None:
    if "highest" not in n or n["rows"] < _TABLE:
        return None
    return "a small part" if n["highest"] < 0.1 * n["rows"] else "much of it"


_TABLE = 32  # rows of a table of which a small part may be used


def _dropout(n: Numbers) -> str:
    if n["off"]:
        return "off while it is trained through" if n["gradient"] else "off"
    return "rate 0" if n["rate"] == 0 else "above a half" if n["rate"] > 0.5 else "usual"  # noqa: PLR2004


def _resize(n: Numbers) -> str | None:
    if "whole" not in n:
        return None
    return "whole numbers are blended" if n["whole"] and n["blends"] else "other"


def _states(n: Numbers) -> str | None:
    if n.get("equal"):
        return "the results are equal"
    is_one = n.get("one_state") and not n.get("zero")
    return "the first states are equal" if is_one else "different"


def _even(n: Numbers) -> str | None:
    return None if "one_value" not in n else "one value" if n["one_value"] else "several values"


def _rows(n: Numbers) -> str | None:
    return None if "rows_alike" not in n else "alike" if n["rows_alike"] == 1 else "different"


def _again(n: Numbers) -> str | None:
    return None if "repeats" not in n else "the same" if n["repeats"] else "changes"


def _scale(n: Numbers) -> str | None:
    low, high = n.get("value_low"), n.get("value_high")
    if low is None or high is None or n.get("whole"):
        return None
    top = max(abs(low), abs(high))
    return "beyond 1,000" if top > 1000 else "beyond 50" if top > 50 else "usual"  # noqa: PLR2004


_STEP = "step"
_IN = "in {lines:line}"
ROWS = (
    Row(
        Kind(
            "operators.softmax over one element",
            {
                "several elements": f"softmax runs over several elements {_IN}",
                "one element": "{of} runs over a dim of 1 element: each result is 1",
            },
            _STEP,
        ),
        ("softmax",),
        _softmax_size,
    ),
    Row(
        Kind(
            "operators.weights of softmax",
            {
                "between": f"weights of softmax are neither even nor all on one element {_IN}",
                "one takes all": "{of} gives one element a weight above 0.999 in "
                "{sharp} of its rows",
                "even": "{of} gives all elements the same weight, in {even} of its rows",
            },
            _STEP,
        ),
        ("softmax",),
        _softmax_weights,
    ),
    Row(
        Kind(
            "operators.reduction of one element",
            {
                "several elements": f"reductions are of several elements {_IN}",
                "one element": "{of}() reduces a dim of 1 element, of a tensor of {of_elements}",
            },
            _STEP,
        ),
        ("reduction",),
        _reduction_size,
    ),
    Row(
        Kind(
            "operators.rows of a batch",
            {
                "apart": f"reductions within modules leave the first dim {_IN}",
                "mixed": "{of}() within a module reduces the first dim, which is as long as the "
                "batch",
            },
            _STEP,
            unsaid="Statistics of a batch are meant to do so.",
        ),
        ("reduction",),
        _mixed,
    ),
    Row(
        Kind(
            "operators.limits",
            {
                "some": f"limits change some elements {_IN}",
                "nothing": "{of}() changes none of the elements that were read",
                "everything": "{of}() changes all elements that were read",
            },
            _STEP,
        ),
        ("limit",),
        _limit,
    ),
    Row(
        Kind(
            "operators.rectifiers",
            {
                "some": f"rectifiers cut some elements {_IN}",
                "none": "no result of {of}() that was read is 0",
                "all": "all results of {of}() that were read are 0",
            },
            _STEP,
        ),
        ("rectifier",),
        _rectifier,
    ),
    Row(
        Kind(
            "operators.masks",
            {
                "some": f"masks hide some elements {_IN}",
                "nothing": "the mask of {of}() hides none of the elements that were read",
                "everything": "the mask of {of}() hides all elements that were read",
            },
            _STEP,
            unsaid="A batch without padding has nothing to hide.",
        ),
        ("mask", "choice", "kept", "blocked", "factor"),
        _mask,
        least=FEW,
    ),
    Row(
        Kind(
            "operators.value of masked elements",
            {
                "far below 0": f"masked elements are set far below 0 {_IN}",
                "0": "masked_fill() sets elements to 0",
                "near 0": "masked_fill() sets elements to {fill}",
                "another": "masked_fill() sets elements to {fill}",
            },
            _STEP,
        ),
        ("mask",),
        _fill,
    ),
    Row(
        Kind(
            "operators.arguments near 0",
            {
                "away from 0": f"no argument of log, root or ratio that was read is near 0 {_IN}",
                "near 0": "an argument of {of}() with a gradient is within 1e-12 of 0, in {near} "
                "of the elements",
            },
            _STEP,
        ),
        ("singular",),
        _singular,
    ),
    Row(
        Kind(
            "loss.target in an input",
            {
                "not found": f"no target of a loss is found in an input of a model {_IN}",
                "one place later": "the target of {of} is the input `{name}`, one place later",
                "two places later": "the target of {of} is the input `{name}`, two places later",
                "one place earlier": "the target of {of} is the input `{name}`, one place earlier",
                "the same place": "the target of {of} is the input `{name}` at the same place",
                "a feature": "the target of {of} is an element of the input `{name}`, in each row",
            },
            _STEP,
            unsaid="A model that reconstructs its input has it as the target by design.",
        ),
        ("target",),
        _target,
    ),
    Row(
        Kind(
            "loss.ignored targets",
            {
                "none": f"no target that was read is ignored {_IN}",
                "a part": "{of} ignores {ignored} of the targets",
                "nearly all": "{of} ignores {ignored} of the targets",
            },
            _STEP,
        ),
        ("loss",),
        _ignored,
    ),
    Row(
        Kind(
            "loss.prediction and target",
            {
                "different": f"prediction and target differ {_IN}",
                "equal": "prediction and target of {of} are equal in all elements that were read",
            },
            _STEP,
        ),
        ("loss",),
        _hit,
    ),
    Row(
        Kind(
            "loss.target again",
            {
                "change": f"targets change from step to step {_IN}",
                "the same": "the target of {of} is the same from step to step, as far as it was "
                "read",
            },
            _STEP,
            unsaid="A program that trains on one whole data set has the same target by design.",
        ),
        ("loss",),
        _targets_again,
    ),
    Row(
        Kind(
            "loss.gradient of the target",
            {
                "no": f"no target of a loss needs a gradient {_IN}",
                "yes": "the target of {of} needs a gradient, as its prediction does",
            },
            _STEP,
        ),
        ("loss",),
        _target_gradient,
    ),
    Row(
        Kind(
            "loss.values of the target",
            {
                "several values": f"targets hold several values {_IN}",
                "one value": "all targets of {of} that were read are {target_low}",
            },
            _STEP,
            unsaid="Targets of adversarial losses are one value by design.",
        ),
        ("loss",),
        _constant_target,
    ),
    Row(
        Kind(
            "operators.padding vector",
            {
                "zero": f"the row of padding of an embedding is 0 {_IN}",
                "not zero": "the row of padding of {of} is not 0; its largest element is "
                "{size_of_padding}",
            },
            _STEP,
        ),
        ("embedding",),
        _padding,
    ),
    Row(
        Kind(
            "operators.rows of a table",
            {
                "much of it": f"indices reach much of the table {_IN}",
                "a small part": "the highest index of {of} is {highest}, in a table of {rows} rows",
            },
            _STEP,
        ),
        ("embedding",),
        _ids,
        least=FEW,
    ),
    Row(
        Kind(
            "operators.dropout",
            {
                "usual": f"dropout has a rate of up to a half {_IN}",
                "off": f"dropout is off, with no gradient {_IN}",
                "rate 0": "{of} has a rate of 0",
                "above a half": "{of} has a rate of {rate}",
                "off while it is trained through": "{of} is off, and a gradient flows through it",
            },
            _STEP,
        ),
        ("dropout",),
        _dropout,
    ),
    Row(
        Kind(
            "operators.resized values",
            {
                "other": f"no whole numbers are seen to be blended by interpolation {_IN}",
                "whole numbers are blended": "{of}() blends values that are whole numbers",
            },
            _STEP,
        ),
        ("resize",),
        _resize,
    ),
    Row(
        Kind(
            "operators.states of lstm",
            {
                "different": f"h and c of an LSTM differ {_IN}",
                "the first states are equal": "h and c that {of}() gets are equal, and not 0",
                "the results are equal": "h and c that {of}() returns are equal",
            },
            _STEP,
        ),
        ("recurrent",),
        _states,
    ),
    Row(
        Kind(
            "operators.results of one value",
            {
                "several values": f"results hold several values {_IN}",
                "one value": "all elements of the result of {of}() that were read are {value}",
            },
            _STEP,
        ),
        ("even",),
        _even,
    ),
    Row(
        Kind(
            "values.rows of an output",
            {
                "different": f"outputs differ from row to row {_IN}",
                "alike": "all rows of the output of {of} that were read are the same",
            },
            _STEP,
        ),
        ("output",),
        _rows,
    ),
    Row(
        Kind(
            "values.rows of an input",
            {
                "different": f"inputs differ from row to row {_IN}",
                "alike": "all rows of the input `{name}` of {of} that were read are the same",
            },
            _STEP,
        ),
        ("input",),
        _rows,
    ),
    Row(
        Kind(
            "values.input again",
            {
                "changes": f"inputs change from step to step {_IN}",
                "the same": "the input `{name}` of {of} is the same from step to step, as far as "
                "it was read",
            },
            _STEP,
            unsaid="A program that trains on one whole data set has the same input by design.",
        ),
        ("input",),
        _again,
    ),
    Row(
        Kind(
            "values.size of an input",
            {
                "usual": f"inputs are within -50 and 50 {_IN}",
                "beyond 50": "the input `{name}` of {of} reaches from {value_low} to {value_high}",
                "beyond 1,000": "the input `{name}` of {of} reaches from {value_low} to "
                "{value_high}",
            },
            _STEP,
        ),
        ("input",),
        _scale,
    ),
)
# Classes of which one line stands for all
FOLDED = frozenset({("operators.dropout", "off")})

APART = Kind(
    "values.input of two lines",
    {
        "alike": "inputs of one model are of one scale in {lines:line}",
        "another scale": "the input `{name}` of {of} has mean {mean} and deviation {deviation} "
        "here, {other_mean} and {other_deviation} in {other}",
    },
)
SIZES = Kind(
    "loss.size of prediction and target",
    {
        "alike": "prediction and target are of one scale at the end in {lines:line}",
        "the target is far larger": "targets of {of} deviate by {target}, predictions by "
        "{prediction}, at the last look",
        "the prediction is far larger": "predictions of {of} deviate by {prediction}, targets by "
        "{target}, at the last look",
        "their means are far apart": "the mean of the targets of {of} is {target_mean}, of the "
        "predictions {prediction_mean}, at the last look",
    },
)
