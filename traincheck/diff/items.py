"""Two recorded values: equal bit for bit, different, or not comparable; and the item of a step.

An item is one thing that two runs have differently: its phase, its name, and its value in each.
Phases are the parts of a training step, in the order in which one causes the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from traincheck.schema.comparison.sketch import decode
from traincheck.schema.values import is_number, is_tensor

Json = Any
NULL = b"null"
_SIZES = ("norm", "min", "max", "mean", "std")  # numbers that two close tensors have alike
_MAPPING = "dict"  # the key of the recorded form of a mapping
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
        what: "bits", "value", "shape", "dtype", "form", "key" or "presence", if they are not.
        gaps: the numbers that show how far they are apart; empty if none was recorded.
        leaf: where the first part that differs is, such as ``['logits'][0]``; "" for the whole.
        a, b: this part. Of a key that one lacks, its name, and None.
    """

    answer: Answer
    what: str = ""
    gaps: tuple[Gap, ...] = ()
    leaf: str = ""
    a: Json = None
    b: Json = None


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
        found = _compare_tensors(a, b)
    elif a is None or b is None:
        found = _SAME if a is b else Comparison(Answer.DIFFERENT, "presence")
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) == len(b):
            return _combined(range(len(a)), a, b)
        found = Comparison(Answer.DIFFERENT, "form")
    elif isinstance(a, dict) and isinstance(b, dict) and not (is_tensor(a) or is_tensor(b)):
        for one, other in ((a, b), (b, a)):
            for key in one:
                if key not in other and key not in _UNTOLD:
                    mine, yours = (key, None) if one is a else (None, key)
                    return Comparison(Answer.DIFFERENT, "key", a=mine, b=yours)
        keys = [key for key in a if key not in _UNTOLD]
        return _combined(keys, [a[key] for key in keys], [b[key] for key in keys])
    elif is_number(a) and is_number(b):
        equal = a == b or _both_nan(a, b)
        found = _SAME if equal else Comparison(Answer.DIFFERENT, "value", (Gap("value", a, b),))
    else:
        equal = type(a) is type(b) and a == b
        found = _SAME if equal else Comparison(Answer.DIFFERENT, "value")
    return replace(found, a=a, b=b) if found.answer is Answer.DIFFERENT else found


def _combined(keys: Iterable[Json], a: Sequence[Json], b: Sequence[Json]) -> Comparison:
    """The first difference among members; else whether all of them could be compared."""
    found = [(key, compare_values(x, y)) for key, x, y in zip(keys, a, b, strict=True)]
    different = [(key, one) for key, one in found if one.answer is Answer.DIFFERENT]
    if different:
        key, first = different[0]
        gaps = tuple(gap for _, one in different for gap in one.gaps)
        step = "" if key == _MAPPING else f"[{key!r}]"
        return replace(first, gaps=gaps, leaf=f"{step}{first.leaf}")
    # Values without tensors are always known: one unknown member leaves the whole open.
    return _UNKNOWN if any(one.answer is Answer.UNKNOWN for _, one in found) else _SAME


def _compare_tensors(a: Mapping[str, Json], b: Mapping[str, Json]) -> Comparison:
    if list(a["shape"]) != list(b["shape"]):
        return Comparison(Answer.DIFFERENT, "shape")
    if a["dtype"] != b["dtype"]:
        return Comparison(Answer.DIFFERENT, "dtype", tuple(_gaps(a, b)))
    x, y = a.get("fingerprint"), b.get("fingerprint")
    if x is not None and y is not None and x.partition(":")[0] == y.partition(":")[0]:
        return _SAME if x == y else Comparison(Answer.DIFFERENT, "bits", tuple(_gaps(a, b)))
    x, y = a.get("value"), b.get("value")
    if x is not None and y is not None:
        if x == y or _both_nan(x, y):
            return _SAME
        return Comparison(Answer.DIFFERENT, "value", tuple(_gaps(a, b)))
    gaps = tuple(_gaps(a, b))
    return Comparison(Answer.DIFFERENT, "numbers", gaps) if gaps else _UNKNOWN


def _gaps(a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterator[Gap]:
    """The numbers of two tensors that differ; the best evidence first."""
    sketch, other = _numbers(a.get("sketch")), _numbers(b.get("sketch"))
    if sketch is not None and other is not None and len(sketch) == len(other):
        # The L2 norm of the difference of two tensors, as their sketches estimate it.
        yield Gap("sketch", math.dist(sketch, other), math.hypot(*other))
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


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """The numbers of a sketch; None if there is none."""
    try:
        return decode(text) if isinstance(text, str) else None
    except ValueError:
        return None


class Phase(str, Enum):
    """The part of a step that a difference is in. Members are in causal order."""

    SETTINGS = "settings"
    RNG = "rng"
    BATCH = "batch"
    FORWARD = "forward"
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    EVALUATION = "evaluation"
    SAVED = "saved"

    @property
    def words(self) -> str:
        """The name as in a sentence: ``optimizer state``."""
        return "random generator" if self is Phase.RNG else self.value.replace("_", " ")


PHASES = tuple(Phase)


Key: TypeAlias = tuple[Phase, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One differing item of a step.

    Attributes:
        phase: what it belongs to.
        name: of the variable, module, loader, generator or setting, by the names of run A.
        what: "bits", "numbers", "value", "shape", "dtype", "form", "key", "presence", "mode",
            "count", "indices", "rows", "seed", "state".
        leaf: the part of the value that differs first, such as ``['logits']``; "" for the whole.
        a, b: the recorded values; None if there is none.
        index: how many items of this name came before it in the step.
        is_opening: whether it differs before the first batch of the step.
        position: its place in the causal order of the step; smaller is earlier.
        gaps: the numbers that differ.
        is_sized: whether a number was recorded on both sides.
        argument: the argument of a call that differs; "" for its result.
        note: what else there is to know, as words.
        where: ``file:line`` of the user's code; "" if not known.
    """

    phase: Phase
    name: str
    what: str
    leaf: str = ""
    a: Any = None
    b: Any = None
    index: int = 0
    is_opening: bool = False
    position: tuple[int, int] = (0, 0)
    gaps: tuple[Gap, ...] = ()
    is_sized: bool = False
    argument: str = ""
    note: str = ""
    where: str = ""
    call: Any = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        """The phase and the name by which it is followed over the steps."""
        return (self.phase, self.name)

    @property
    def size(self) -> float | None:
        """The relative difference; None if no number was recorded."""
        return max((gap.relative for gap in self.gaps), default=None)
