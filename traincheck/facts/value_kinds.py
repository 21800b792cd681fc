"""More kinds of facts of functions and models: what is broadcast, what is left out, what counts.

The first class of a kind is the calm one.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.facts.kinds import Kind
from traincheck.facts.operation_kinds import Numbers, Row


def _of_all_rows(n: Numbers) -> str | None:
    if "of_all_rows" not in n:
        return None
    return "of all rows" if n["of_all_rows"] else "of one row"


def _vector(n: Numbers) -> str:
    if n["outer"] == 1:
        return "larger than both"
    return "over a square" if n["square"] == 1 else "one way"


def _norm(n: Numbers) -> str | None:
    if n["first"]:
        return None
    return "a dim amid others" if n["left"] and n["one"] and not n["last"] else "the last dims"


def _mask_of_rows(n: Numbers) -> str | None:
    if not n["whole"] and not n["part"]:
        return None
    return "parts of rows" if n["part"] else "whole rows"


def _limit_of_dtype(n: Numbers) -> str:
    if n["is_one"]:
        return "1 in the dtype"
    return "0 in the dtype" if n["is_zero"] else "as given"


def _table(n: Numbers) -> str | None:
    return None if "written" not in n else "written" if n["written"] else "not written"


def _one_value(n: Numbers) -> str | None:
    if "value_low" not in n:
        return None
    return "one value" if n["value_low"] == n["value_high"] else "several values"


def _labels_of_padding(n: Numbers) -> str | None:
    if "counted" not in n or n["binary"] < 1:
        return None
    return "ignored" if n["counted"] == 0 else "all count" if n["counted"] == 1 else "some count"


def _first_labels(n: Numbers) -> str | None:
    if "first_counts" not in n or n["binary"] < 1:
        return None
    return "alike" if n["first_counts"] in (0, 1) else "in some rows"


_STEP = "step"
_IN = "in {lines:line}"
ROWS: Sequence[Row] = (
    Row(
        Kind(
            "operators.number of all rows",
            {
                "of one row": f"no sum or mean of all rows of a batch is broadcast over rows {_IN}",
                "of all rows": "{of}() broadcasts one number, the sum or mean over the whole batch "
                "and all dims, to {elements} elements, so that each depends on the other rows",
            },
            _STEP,
            unsaid="Losses and statistics of a batch are made so by design.",
        ),
        ("broadcast",),
        _of_all_rows,
    ),
    Row(
        Kind(
            "operators.broadcast vector",
            {
                "one way": f"vectors can be broadcast in one way only {_IN}",
                "over a square": "{of}() broadcasts {size} elements along the first dim of "
                "{size} x {size} elements; a column for each row has the same shape",
                "larger than both": "{of}() broadcasts {size} elements and a column of {size} to "
                "{size} x {size}: the shape of its result is larger than both",
            },
            _STEP,
        ),
        ("broadcast",),
        _vector,
    ),
    Row(
        Kind(
            "operators.dims of a norm",
            {
                "the last dims": f"norms run over the last dim, or over all but the first {_IN}",
                "a dim amid others": "{of}() runs over dim={dim} alone, of {dims} dims: there is "
                "a norm for each element of the other dims",
            },
            _STEP,
        ),
        ("norm",),
        _norm,
    ),
    Row(
        Kind(
            "operators.rows of a mask",
            {
                "parts of rows": f"masks hide parts of the rows of the last dim {_IN}",
                "whole rows": "the mask of {of}() hides whole rows of the last dim, {whole:%} of "
                "those that were read, and of no row a part",
            },
            _STEP,
            unsaid="Over which dim a softmax runs. Over the last one it would give a masked row "
            "even weights.",
        ),
        ("mask of rows",),
        _mask_of_rows,
    ),
    Row(
        Kind(
            "operators.limits of a dtype",
            {
                "as given": f"limits are not rounded to 0 or 1 {_IN}",
                "1 in the dtype": "the limit 1 - {below} of {of}() is rounded to 1 by the dtype of "
                "its argument; log(1 - x) is infinite at 1",
                "0 in the dtype": "the limit {limit} of {of}() is rounded to 0 by the dtype of its "
                "argument; log(x) is infinite at 0",
            },
            _STEP,
        ),
        ("limit of a dtype",),
        _limit_of_dtype,
    ),
    Row(
        Kind(
            "operators.table within a step",
            {
                "not written": f"tables stay as they are while a step reads them {_IN}",
                "written": "the table of {of}() is written between two reads of one step",
            },
            _STEP,
        ),
        ("table",),
        _table,
    ),
    Row(
        Kind(
            "values.values of an input",
            {
                "several values": f"inputs hold several values {_IN}",
                "one value": "all elements of the input `{name}` of {of} that were read are one "
                "value, {value_low}",
            },
            _STEP,
            unsaid="A mask of a batch without padding is 1 by design.",
        ),
        ("input",),
        _one_value,
    ),
    Row(
        Kind(
            "loss.labels of padding",
            {
                "ignored": f"labels are ignored where a mask is 0 {_IN}",
                "some count": "{counted:%} of the labels count at places where the input `{name}` "
                "of {of} is 0, as it is for padding",
                "all count": "labels count at all places that were read where the input `{name}` "
                "of {of} is 0, as it is for padding",
            },
            _STEP,
        ),
        ("labels",),
        _labels_of_padding,
    ),
    Row(
        Kind(
            "loss.first label of a row",
            {
                "alike": f"the first label of a row counts in all rows or in none {_IN}",
                "in some rows": "the first label at which the input `{name}` of {of} is not 0 "
                "counts in {first_counts:%} of the rows, and is ignored in the others",
            },
            _STEP,
        ),
        ("labels",),
        _first_labels,
    ),
)
