"""The recorded form of an argument, a result or a tensor. Never tensor data.

A value in a call event is JSON: a scalar is unchanged (a non-finite float becomes its name as
text), a sequence is a list, and

- a tensor      ``{"dtype": "float32", "shape": [64, 10], "device": "cpu", ...}``
- a mapping     ``{"dict": {key: value}}``
- anything else ``{"type": "torch.nn.modules.linear.Linear"}``; classes, functions and dtypes
  ``{"name": dotted}``
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from traincheck.schema.record import Int64, Record

Value = Any  # JSON: None | bool | int | float | str | list[Value] | dict[str, Value]

# Numbers that a summary may have. Over finite elements only, except `nonfinite`.
STATS = {
    "norm": "L2 norm",
    "min": "smallest element",
    "max": "largest element",
    "mean": "mean",
    "std": "standard deviation",
    "nonfinite": "how many elements are NaN or infinite",
    "zeros": "share of elements that are exactly zero, in [0, 1]",
    "dead": (
        "share of units (last dim; channels of images) that are off over the whole batch, in "
        "[0, 1]: zero, or on the flat or leaking side of their activation; of a parameter, share "
        "of rows or filters whose norm is below 1e-6"
    ),
    "saturated": "share of elements at a limit of their activation, in [0, 1]",
    "alike": "share of rows of a parameter, or of a batch, that equal its first, in (0, 1]",
    "top": "share of the most frequent value, in (0, 1]",
    "shifted": (
        "by how many positions labels are ahead of the tokens of their batch, where that shows: 1 "
        "for a tensor of a batch or an argument of a model, 0, 1 or 2 for the target of a loss"
    ),
    "columns": "1 for a target whose texts lie in columns, as models take them sequence first",
    "fed": "1 for labels that a model embeds as they are, each at its position",
    "hidden": (
        "share of weights of attention to later positions that are next to nothing (below 1e-12), "
        "in [0, 1]; of the first head of the first sample, and its first 256 positions"
    ),
    "inverted": (
        "of a mask over keys whose tokens are known, 1 if it lets attention see their padding and "
        "nothing else, or 0"
    ),
    "ignored": "share of whole numbers that are -100, which losses leave out, where there are any",
    "row_sum_min": "smallest sum over the last dim",
    "row_sum_max": "largest sum over the last dim",
}


class TensorSummary(Record, frozen=True):
    """The summary of one tensor.

    Attributes:
        dtype: without the ``torch.`` prefix.
        shape: sizes of all dims.
        device: ``cpu`` or ``cuda:0``.
        requires_grad: whether it requires grad.
        fingerprint: ``<algorithm>:<hex digest>`` over content, shape and dtype; compare equal
            algorithms only; None if not taken.
        value: the number in a 0-dim CPU tensor, when kept.
        zero: whether every element is zero; None when not known.
        stats: numbers by name, if a check needs them (see STATS); None if not taken.
        sketch: base64 of 64 little-endian float64, the linear sketch of the elements
            (schema/comparison/sketch.py); None if not taken. Sketches of shards add up to that of
            the whole.
    """

    dtype: str
    shape: tuple[Int64, ...]
    device: str = "cpu"
    requires_grad: bool = False
    fingerprint: str | None = None
    value: float | int | bool | None = None
    zero: bool | None = None
    stats: dict[str, float | int] | None = None
    sketch: str | None = None


def is_number(value: Value) -> bool:
    """Whether it is a number, and not true or false."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_tensor(value: Value) -> bool:
    """Whether ``value`` is the JSON form of a tensor summary."""
    return isinstance(value, dict) and "dtype" in value and "shape" in value


def tensor_summary(value: Value) -> TensorSummary | None:
    """Decode the JSON form of a tensor summary; None when ``value`` is something else."""
    if not is_tensor(value):
        return None
    return TensorSummary(
        value["dtype"],
        tuple(value["shape"]),
        value.get("device", "cpu"),
        value.get("requires_grad", False),
        value.get("fingerprint"),
        value.get("value"),
        value.get("zero"),
        value.get("stats"),
        value.get("sketch"),
    )


def stats_of(value: Value) -> dict[str, float] | None:
    """The statistics in the JSON form of a tensor summary; None if there are none."""
    return value.get("stats") if isinstance(value, dict) and is_tensor(value) else None


def tensor_json(summary: TensorSummary) -> dict[str, Value]:
    """Encode a tensor summary, leaving out what equals its default."""
    out: dict[str, Value] = {
        "dtype": summary.dtype,
        "shape": list(summary.shape),
        "device": summary.device,
    }
    for key, default in (
        ("requires_grad", False),
        ("fingerprint", None),
        ("value", None),
        ("zero", None),
        ("stats", None),
        ("sketch", None),
    ):
        found = getattr(summary, key)
        if found is not default:
            out[key] = found
    return out


def tensors_in(values: Mapping[str, Value]) -> dict[str, TensorSummary]:
    """The tensors among named values, one level of list deep: ``input``, ``tensors[0]``."""
    found: dict[str, TensorSummary] = {}
    for name, value in values.items():
        summary = tensor_summary(value)
        if summary is not None:
            found[name] = summary
        elif isinstance(value, list):
            for index, item in enumerate(value):
                inner = tensor_summary(item)
                if inner is not None:
                    found[f"{name}[{index}]"] = inner
    return found


def number(value: Value) -> float | None:
    """A number, or the one in a 0-dim tensor; None if it is not known or not finite."""
    if isinstance(value, Mapping):
        value = value.get("value")
    elif isinstance(value, list) and len(value) == 1:
        return number(value[0])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
