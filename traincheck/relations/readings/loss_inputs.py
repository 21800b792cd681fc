"""Readings of the arguments of a loss: extremes, classes, shifted and ignored labels."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

from traincheck.facts.losses import BCE_LOGITS, CROSS_ENTROPY, OVER_CLASSES
from traincheck.relations.readings.reading import (
    AHEAD,
    CLASSES,
    IN_A_ROW,
    LARGEST,
    LEFT_OUT,
    SMALLEST,
    UNPADDED,
    ReadingKey,
    ScalarReading,
)
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
)
from traincheck.schema.torch_api import IGNORED_LABEL
from traincheck.schema.values import Value, number

_LEAST_LIKELY = 0.25  # some probability of any reasonable batch is above it
_ROUNDED = 0.02  # how far the sum of probabilities may be from one, in half precision
_LEAST_MEAN = 0.35  # of initial sigmoid outputs, which are about one half
_MIN_ELEMENTS = 16  # fewer may all have one sign by chance


def extremes(event: CallEvent) -> Iterator[ScalarReading]:
    """Smallest and largest element of the arguments of a loss in training."""
    for name in ("input", "target"):
        tensor = event.args.get(name)
        stats = tensor.get("stats") if isinstance(tensor, Mapping) else None
        if (
            tensor is None
            or not stats
            or math.prod(tensor["shape"]) < _MIN_ELEMENTS * (name == "input")
        ):
            continue
        low, high = number(stats.get("min")), number(stats.get("max"))
        if low is None or high is None or _are_scores(event.api, name, tensor):
            continue
        if name == "input" and low == high:  # a head that begins at zero gives one number for all
            continue
        yield ScalarReading(ReadingKey(SMALLEST, event.api, name), low, event)
        yield ScalarReading(ReadingKey(LARGEST, event.api, name), high, event)


def _are_scores(api: str, name: str, tensor: Mapping[str, Value]) -> bool:
    """Whether these are not probabilities though none is below zero, as of few classes at first."""
    shape, stats = tensor["shape"], tensor["stats"]
    low, high = stats["min"], stats["max"]
    if api == BCE_LOGITS:
        return bool(low >= 0 and not _LEAST_LIKELY <= high <= 1)
    if api != CROSS_ENTROPY or name != "input" or low <= 0:  # zero itself is where ReLU cuts off
        return False
    classes = shape[min(1, len(shape) - 1)]
    if not 1 / classes <= high <= 1:
        return True
    least, most = number(stats.get("row_sum_min")), number(stats.get("row_sum_max"))
    if least is None or most is None or 1 - _ROUNDED < least <= most < 1 + _ROUNDED:
        return False
    return most < _LEAST_MEAN * int(classes)


def class_counts(event: CallEvent) -> Iterator[ScalarReading]:
    """The number of classes of cross_entropy."""
    given, target = event.args.get("input"), event.args.get("target")
    if event.api == CROSS_ENTROPY and isinstance(given, Mapping) and isinstance(target, Mapping):
        shape = given.get("shape") or ()
        if shape and target.get("dtype") == "int64":
            yield ScalarReading(
                ReadingKey(CLASSES, event.api), shape[min(1, len(shape) - 1)], event
            )


def label_shift(event: CallEvent) -> Iterator[ScalarReading]:
    """Whether a target is one token ahead of the input of the model; *loss* covers two."""
    target = event.args.get("target") if event.api in OVER_CLASSES else None
    value = statistic(target, "shifted")
    if value in (0, 1):
        yield ScalarReading(ReadingKey(AHEAD, event.api), value, event)


def statistic(tensor: Value, name: str) -> float | None:
    """A statistic of a tensor, if it was recorded."""
    stats = tensor.get("stats") if isinstance(tensor, Mapping) else None
    return number(stats.get(name)) if stats else None


class IgnoredLabels:
    """Whether a loss ignores some labels in a few calls in a row.

    Calls on batches without padding have readings of their own: their prompts may be ignored. A
    loop may fetch a batch ahead, so both of the last two batches must have padding, or none.
    """

    def __init__(self) -> None:
        self._calls: dict[ReadingKey, list[tuple[float, float, bool]]] = defaultdict(list)
        self._padding: deque[Value] = deque(maxlen=2)

    def batch(self, event: BatchEvent) -> None:
        """Enter a batch, with its share of padding if that is known."""
        if event.stage == "train":
            self._padding.append(event.tokens.get("padding"))

    def loss(self, event: CallEvent) -> Sequence[ScalarReading]:
        """A loss was called. A single row has no padding."""
        target = event.args.get("target") if event.api in OVER_CLASSES else None
        low, high = statistic(target, "min"), statistic(target, "max")
        if target is None or low is None or high is None or target["shape"][:1] == [1]:
            return ()
        ignored = event.args.get("ignore_index", IGNORED_LABEL)
        is_left_out = ignored in (low, high)
        is_known = bool(self._padding) and None not in self._padding
        is_padded = {bool(share) for share in self._padding} if is_known else set()
        if not is_left_out and (len(is_padded) > 1 or (not is_known and ignored != IGNORED_LABEL)):
            return ()  # an index that was chosen would leave out what has it: there is no padding
        key = ReadingKey(LEFT_OUT, event.api, UNPADDED if is_padded == {False} else "")
        calls = self._calls[key]
        calls.append((low, high, is_left_out))
        if len(calls) < IN_A_ROW:
            return ()
        del self._calls[key]
        lows, highs, left_out = zip(*calls)
        if not (is_known or any(left_out)) and len(set(lows)) > 1 and len(set(highs)) > 1:
            return ()  # padding would have one label, that of the least or the last token
        return (ScalarReading(key, float(any(left_out)), event),)
