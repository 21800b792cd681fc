"""Two recorded values: equal bit for bit, different, or not comparable; and by how much."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from traincheck.schema.values import is_number, is_tensor

Json = Any
NULL = b"null"
_SIZES = ("norm", "min", "max", "mean", "std")  # numbers that two close tensors have alike
_UNTOLD = frozenset({"device", "identity", "zero"})


class Answer(Enum):
    """Whether two values are the same."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "not comparable"


@dataclass(frozen=True, slots=True)
class Gap:
    """A number of two values that differ.

    Attributes:
        name: "value", "sketch", or that of a number in STATS.
        a, b: the number in each run. Of a sketch: the L2 norm of the difference, and that of b.
    """

    name: str
    a: float
    b: float

    @property
    def size(self) -> float:
        """The absolute difference; infinite if one number is not finite."""
        if self.name == "sketch":
            return self.a
        difference = abs(self.a - self.b)
        return difference if math.isfinite(difference) else math.inf

    @property
    def relative(self) -> float:
        """The difference as a share of the larger number."""
        scale = abs(self.b) if self.name == "sketch" else max(abs(self.a), abs(self.b))
        return self.size / scale if scale else (math.inf if self.size else 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for two values.

    Attributes:
        answer: whether they are the same.
        what: "bits", "value", "shape", "dtype", "form" or "presence", if they are not.
        gaps: the numbers that show how far they are apart; empty if none was recorded.
    """

    answer: Answer
    what: str = ""
    gaps: tuple[Gap, ...] = ()


_SAME = Comparison(Answer.SAME)
_UNKNOWN = Comparison(Answer.UNKNOWN)


def is_telling(value: bytes) -> bool:
    """Whether equal JSON means equal values: tensors in it have a fingerprint or numbers."""
    if b'"dtype"' not in value:
        return True
    return b'"fingerprint"' in value or b'"value"' in value or b'"stats"' in value


def compare_json(a: bytes, b: bytes) -> Comparison:
    """Compare two values that are JSON text."""
    if a == b:
        return _SAME
    return compare_values(msgspec.json.decode(a), msgspec.json.decode(b))


def compare_values(a: Json, b: Json) -> Comparison:
    """Compare two decoded values: bits decide where fingerprints are known, else numbers."""
    if is_tensor(a) and is_tensor(b):
        return _compare_tensors(a, b)
    if a is None or b is None:
        return _SAME if a is b else Comparison(Answer.DIFFERENT, "presence")
    if isinstance(a, list) and isinstance(b, list):
        return _combined(a, b) if len(a) == len(b) else Comparison(Answer.DIFFERENT, "form")
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() - _UNTOLD != b.keys() - _UNTOLD:
            return Comparison(Answer.DIFFERENT, "form")
        keys = [key for key in a if key not in _UNTOLD]
        return _combined([a[key] for key in keys], [b[key] for key in keys])
    if is_number(a) and is_number(b):
        return _SAME if a == b else Comparison(Answer.DIFFERENT, "value", (Gap("value", a, b),))
    return _SAME if type(a) is type(b) and a == b else Comparison(Answer.DIFFERENT, "value")


def _combined(a: Sequence[Json], b: Sequence[Json]) -> Comparison:
    """The first difference among members; else whether all of them could be compared."""
    found = [compare_values(x, y) for x, y in zip(a, b, strict=True)]
    different = [one for one in found if one.answer is Answer.DIFFERENT]
    if different:
        return Comparison(
            Answer.DIFFERENT, different[0].what, tuple(g for one in different for g in one.gaps)
        )
    # Values without tensors are always known: one unknown member leaves the whole open.
    return _UNKNOWN if any(one.answer is Answer.UNKNOWN for one in found) else _SAME


def _compare_tensors(a: Mapping[str, Json], b: Mapping[str, Json]) -> Comparison:
    if list(a["shape"]) != list(b["shape"]):
        return Comparison(Answer.DIFFERENT, "shape")
    if a["dtype"] != b["dtype"]:
        return Comparison(Answer.DIFFERENT, "dtype", tuple(_gaps(a, b)))
    equal = _equal_fingerprints(a.get("fingerprint"), b.get("fingerprint"))
    if equal is not None:
        return _SAME if equal else Comparison(Answer.DIFFERENT, "bits", tuple(_gaps(a, b)))
    x, y = a.get("value"), b.get("value")
    if x is not None and y is not None:
        if x == y or _both_nan(x, y):
            return _SAME
        return Comparison(Answer.DIFFERENT, "value", tuple(_gaps(a, b)))
    gaps = tuple(_gaps(a, b))
    return Comparison(Answer.DIFFERENT, "numbers", gaps) if gaps else _UNKNOWN


def _equal_fingerprints(a: str | None, b: str | None) -> bool | None:
    """Whether two fingerprints are equal; None if they cannot be compared."""
    if a is None or b is None or a.partition(":")[0] != b.partition(":")[0]:
        return None
    return a == b


def _gaps(a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterator[Gap]:
    """The numbers of two tensors that differ; the best evidence first."""
    sketch = _sketch_gap(a.get("sketch"), b.get("sketch"), b)
    if sketch is not None:
        yield sketch
        return
    pairs: list[tuple[str, Json, Json]] = [("value", a.get("value"), b.get("value"))]
    mine, yours = a.get("stats") or {}, b.get("stats") or {}
    pairs += [(name, mine.get(name), yours.get(name)) for name in _SIZES]
    for name, x, y in pairs:
        if is_number(x) and is_number(y) and x != y and not _both_nan(x, y):
            yield Gap(name, x, y)


def _both_nan(a: Json, b: Json) -> bool:
    return isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)


def numbers_alike(a: Json, b: Json) -> bool:
    """Whether both tensors have numbers to be compared by, or a sketch."""
    if not (is_tensor(a) and is_tensor(b)):
        return is_number(a) and is_number(b)
    if a.get("sketch") and b.get("sketch"):
        return True
    if is_number(a.get("value")) and is_number(b.get("value")):
        return True
    return bool((a.get("stats") or {}).keys() & (b.get("stats") or {}).keys() & set(_SIZES))


def _sketch_gap(a: str | None, b: str | None, summary: Mapping[str, Json]) -> Gap | None:
    """The L2 norm of the difference of two tensors, as their sketches estimate it."""
    x, y = _numbers(a), _numbers(b)
    if x is None or y is None or len(x) != len(y):
        return None
    return Gap("sketch", math.dist(x, y), math.hypot(*y))


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """The buckets of a sketch: little-endian float64 in base64."""
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(raw) // 8}d", raw)
    except (ValueError, struct.error):
        return None
