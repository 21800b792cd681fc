"""All readings of a training run: inputs of losses, sizes of gradients, first updates."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings.loss_scales import (
    GRADIENT,
    IN_A_ROW,
    LOSS,
    SCALED_LOSS,
    UNPADDED,
    LossScale,
    Numbers,
    Padding,
)
from traincheck.readings.losses import BCE_LOGITS, CROSS_ENTROPY, LOSSES, OVER_CLASSES
from traincheck.readings.reading import Key, Reader, Reading
from traincheck.readings.resumptions import brings_back
from traincheck.readings.small_samples import FEWEST_UNITS, has_few, units_of
from traincheck.readings.steps import is_judged
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import ATTENTION, IGNORED_LABEL, SOFTMAXES, Families
from traincheck.schema.values import Value, number, tensor_summary

_LEAST_LIKELY = 0.25  # some probability of any reasonable batch is above it
_ROUNDED = 0.02  # how far the sum of probabilities may be from one, in half precision
_LEAST_MEAN = 0.35  # of initial sigmoid outputs, which are about one half
_MIN_ELEMENTS = 16  # fewer may all have one sign by chance


def extremes(event: CallEvent) -> Iterator[Reading]:
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
        yield Reading(Numbers.SMALLEST, event.api, name, low, event)
        yield Reading(Numbers.LARGEST, event.api, name, high, event)


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


def class_counts(event: CallEvent) -> Iterator[Reading]:
    """The number of classes of cross_entropy."""
    given, target = event.args.get("input"), event.args.get("target")
    if event.api == CROSS_ENTROPY and isinstance(given, Mapping) and isinstance(target, Mapping):
        shape = given.get("shape") or ()
        if shape and target.get("dtype") == "int64":
            yield Reading(Numbers.CLASSES, event.api, "", shape[min(1, len(shape) - 1)], event)


def label_shift(event: CallEvent) -> Iterator[Reading]:
    """Whether a target is one token ahead of the input of the model; *loss* covers two."""
    target = event.args.get("target") if event.api in OVER_CLASSES else None
    value = statistic(target, "shifted")
    if value in (0, 1):
        yield Reading(Numbers.AHEAD, event.api, "", value, event)


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
        self._calls: dict[Key, list[tuple[float, float, bool]]] = defaultdict(list)
        self._padding: deque[Value] = deque(maxlen=2)

    def batch(self, event: BatchEvent) -> None:
        """Enter a batch, with its share of padding if that is known."""
        if event.stage == "train":
            self._padding.append(event.tokens.get("padding"))

    def loss(self, event: CallEvent) -> Sequence[Reading]:
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
        key = Key(Numbers.LEFT_OUT, event.api, UNPADDED if is_padded == {False} else "")
        calls = self._calls[key]
        calls.append((low, high, is_left_out))
        if len(calls) < IN_A_ROW:
            return ()
        del self._calls[key]
        lows, highs, left_out = zip(*calls)
        if not (is_known or any(left_out)) and len(set(lows)) > 1 and len(set(highs)) > 1:
            return ()  # padding would have one label, that of the least or the last token
        return (Reading(*key, float(any(left_out)), event),)


_MIN_WEIGHTS = 2  # fewer have no shares
_OF_MANY = 2  # examples that a share of units is worth, as it covers many
_SHARES = (("dead", Numbers.DEAD), ("saturated", Numbers.SATURATED))


@dataclass(slots=True)
class GradientSizes:
    """Norms of the gradients of an update; nothing if they are scaled."""

    _known: dict[str, StateEvent] = field(default_factory=dict)
    _norms: dict[str, float] = field(default_factory=dict)  # largest in this step, or the last
    _fresh: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)  # cleared, at one end of the step or the other
    _is_scaled: bool = False
    _is_flat: bool = False  # the loss is zero, as a margin loss may be
    _is_lost: bool = False  # the loss is not a number, so gradients are not either
    _non_finite: StateEvent | None = None  # the first such gradient in this step
    _is_known: bool = False  # gradients have statistics
    _is_partial: bool = False  # some have none, as in most steps of a selective view

    def state(self, event: StateEvent) -> None:
        """A gradient came, changed or went."""
        stats = event.summary.stats if event.summary is not None else None
        norm = number(stats.get("norm")) if stats else None
        if stats and "nonfinite" in stats:
            self._is_known = True
            if stats["nonfinite"] and self._non_finite is None:
                self._non_finite = event
        if norm is None:
            self._gone.add(event.name)
            self._is_partial |= event.summary is not None and not stats
            return
        self._gone.discard(event.name)
        # A gradient may be cleared before or after: backward computed the largest of a step.
        if event.name not in self._fresh or norm > self._norms[event.name]:
            self._norms[event.name] = norm
            self._known[event.name] = event
        self._fresh.add(event.name)

    def loss(self, event: CallEvent) -> None:
        """Backward was called."""
        given = event.args.get("tensors")
        self._is_flat |= number(given) == 0
        self._is_lost |= isinstance(given, dict) and isinstance(given.get("value"), str)

    def scaled(self) -> None:
        """A gradient scaler has scaled the loss."""
        self._is_scaled = True

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        for name in self._gone - self._fresh:
            self._norms.pop(name, None)
        found = self._readings(event) if is_judged(event) and not self._is_scaled else []
        self._non_finite, self._is_known, self._is_flat = None, False, False
        self._is_lost = self._is_partial = False
        for name in self._gone:
            self._norms.pop(name, None)
        self._fresh.clear()
        self._gone.clear()
        return found

    def _readings(self, event: StepEvent) -> list[Reading]:
        found = []
        if self._is_known:
            wrong = self._non_finite
            at: Event = event if wrong is None else wrong
            found.append(Reading(Numbers.NON_FINITE, "", GRADIENT, float(wrong is not None), at))
        if not self._norms or self._is_lost or self._is_partial or _is_search(event):
            return found
        norm = math.hypot(*self._norms.values())
        largest = self._known[max(self._norms, key=lambda name: self._norms[name])]
        at = largest if largest.step == event.step else event
        found.append(Reading(Numbers.GRADIENT_NORM, "", "", norm, at))
        if norm or not self._is_flat:
            found.append(Reading(Numbers.FLAT, "", "", norm, event))
        weights = [name for name in self._norms if self._is_weight(name)]
        if norm and len(weights) >= _MIN_WEIGHTS:
            name = min(weights, key=lambda name: self._norms[name])
            found.append(
                Reading(Numbers.LEAST_SHARE, "", "", self._norms[name] / norm, self._known[name])
            )
        return found

    def _is_weight(self, name: str) -> bool:
        """Whether it is a weight: the gradient of a bias may be mere noise."""
        summary = self._known[name].summary
        return summary is not None and len(summary.shape) > 1 and not has_few(summary.shape)


def _is_search(event: StepEvent) -> bool:
    """Whether one update tried several points: a line search may reject distant ones."""
    counters = event.counters
    updates = counters.get("optimizer_step", 0)
    return min(counters.get("backward", 0), counters.get("zero_grad", 0)) > updates > 0


@dataclass(slots=True)
class UnitActivity:
    """Shares of units that are dead for a whole batch, and of saturated elements."""

    _waiting: list[tuple[str, Key, float, CallEvent]] = field(default_factory=list)

    def call(self, event: CallEvent) -> None:
        """A function or module returned a tensor with statistics, in training."""
        result = event.result
        stats = result.get("stats") if isinstance(result, dict) else None
        if not stats or not event.grad_enabled or event.exception is not None:
            return
        summary = tensor_summary(result)
        units = 0 if summary is None else units_of(summary.shape)
        for stat, quantity in _SHARES:
            if stat in stats and units >= FEWEST_UNITS:
                key = Key(quantity, event.api, event.module or "")
                self._waiting.append((quantity, key, float(stats[stat]), event))

    def root(self, event: CallEvent) -> Sequence[Reading]:
        """The model that called them all has ended; a function is named with it."""
        waiting, self._waiting = self._waiting, []
        if not event.training or not event.grad_enabled:
            return ()
        root = event.module or event.api
        worst: dict[Key, Reading] = {}
        for quantity, key, value, call in waiting:
            place = key if key.under else Key(quantity, key.of, root)
            if place not in worst or value > worst[place].value:
                worst[place] = Reading(*place, value, call, weight=_OF_MANY)
        return tuple(worst.values())

    def step(self) -> None:
        """No model's call reaches over the end of a step."""
        self._waiting.clear()


_OF_FLOAT32 = 2.5e-5  # of the mean size of elements: rounding loses a part of smaller updates

_Group = tuple[str, int]  # an optimizer and the index of a group


# Optimizers that divide by the size of gradients move an element by about the rate, however large
# its gradient is; with the averages that Adam takes, by hardly more in the first ten updates.
@dataclass(slots=True)
class FirstUpdates:
    """Follows one process. There are no readings of optimizers that continue from a file.

    Each class of optimizer has separate readings: one divides by the size of gradients, another
    does not.
    """

    _groups: dict[str, set[_Group]] = field(default_factory=dict)  # by name of the parameter
    _classes: dict[str, str] = field(default_factory=dict)  # of optimizers
    _moved: dict[str, tuple[float, StateEvent]] = field(default_factory=dict)
    _is_resumed: bool = False

    def optimizer(self, event: OptimizerEvent) -> None:
        """An optimizer was created, or its groups changed."""
        self._classes[event.id] = event.cls
        for groups in self._groups.values():
            groups.difference_update([group for group in groups if group[0] == event.id])
        for index, group in enumerate(event.groups):
            for name in group.params:
                self._groups.setdefault(name, set()).add((event.id, index))

    def checkpoint(self, event: CheckpointEvent) -> None:
        """Something was saved or loaded."""
        self._is_resumed |= event.owner is not None and brings_back(event)

    def state(self, event: StateEvent) -> None:
        """A parameter changed."""
        stats = event.summary.stats if event.summary is not None else None
        moved = number(stats.get("moved")) if stats else None
        if moved is not None and event.change == "content":
            known = self._moved.get(event.name)
            if known is None or known[0] < moved:
                self._moved[event.name] = (moved, event)

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The farthest that an element was moved, by class of optimizer."""
        moves, self._moved = self._moved, {}
        if not moves or self._is_resumed or not is_judged(event):
            return ()
        farthest: dict[str, tuple[float, StateEvent]] = {}
        for name, (moved, look) in moves.items():
            cls, rate = self._rate(name, event)
            if rate is not None and rate > _OF_FLOAT32 * _mean_size(look):
                ratio = moved / rate
                if cls not in farthest or ratio > farthest[cls][0]:
                    farthest[cls] = (ratio, look)
        return [Reading(Numbers.MOVED, "", cls, *found) for cls, found in farthest.items()]

    def _rate(self, name: str, event: StepEvent) -> tuple[str, float | None]:
        """Class and rate of the one group that holds the parameter."""
        groups = self._groups.get(name, set())
        if len(groups) != 1:
            return "", None
        ((optimizer, index),) = groups
        rates = event.lr.get(optimizer, ())
        return self._classes[optimizer], number(rates[index]) if index < len(rates) else None


def _mean_size(look: StateEvent) -> float:
    """The root of the mean square of its elements; infinite where it is not known."""
    summary = look.summary
    norm = number((summary.stats or {}).get("norm")) if summary is not None else None
    if summary is None or norm is None:
        return math.inf
    return norm / math.sqrt(max(1, math.prod(summary.shape)))


_TOKENS_NDIM = 2


def _hidden(event: CallEvent) -> Sequence[Reading]:
    """The share of later positions that attention leaves out, where it was recorded."""
    value = statistic(event.result, "hidden")
    return () if value is None else (Reading(Numbers.HIDDEN, event.api, "", value, event),)


def _finite(event: CallEvent, name: str) -> Sequence[Reading]:
    """Whether the loss passed to backward() is a number; nothing if that is not known."""
    given = event.args.get("tensors")
    value = given.get("value") if isinstance(given, Mapping) else None
    if value is None:
        return ()
    return (Reading(Numbers.NON_FINITE, "", name, float(isinstance(value, str)), event),)


def _batch(event: BatchEvent) -> Sequence[Reading]:
    """Whether each part of a batch is finite, where numbers of them are taken."""
    return [
        Reading(Numbers.NON_FINITE, event.loader, path, float(leaf["stats"]["nonfinite"]), event)
        for path, leaf in event.leaves.items()
        if isinstance(leaf, Mapping) and "nonfinite" in (leaf.get("stats") or {})
    ]


@dataclass(slots=True)
class GeneratedTokens:
    """How many tokens were added to a sequence, at each call of the model that adds one."""

    _lengths: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # rows, length, calls

    def call(self, event: CallEvent) -> Sequence[Reading]:
        """A model was called from outside."""
        module = event.module or event.api
        ids = event.args.get("0", event.args.get("input_ids"))
        shape: Sequence[int] = ids.get("shape", ()) if isinstance(ids, Mapping) else ()
        if event.grad_enabled or len(shape) != _TOKENS_NDIM or ids["dtype"] != "int64":
            self._lengths.pop(module, None)
            return ()
        rows, length = shape
        known_rows, known_length, calls = self._lengths.get(module, (-1, -1, 0))
        # With a cache only the last token is given.
        grows = known_rows == rows and length in (known_length + 1, 1)
        calls = calls + 1 if grows else 1
        self._lengths[module] = (rows, length, calls)
        key = Key(Numbers.GENERATED, event.api, module)
        return (Reading(*key, calls, event),) if grows else ()


class ScalarReadings(Reader):
    """Passes each event to the readings that it concerns."""

    def __init__(self) -> None:
        self._scale = LossScale()
        self._generated = GeneratedTokens()
        self._gradients = GradientSizes()
        self._activity = UnitActivity()
        self._padding = Padding()
        self._moves = FirstUpdates()
        self._left_out = IgnoredLabels()
        self._has_scaled = False  # the loss of the backward that comes

    def observe(self, event: Event) -> Sequence[Reading]:
        """The numbers that an event completes."""
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._gradients.state(event)
            elif event.role == "parameter":
                self._moves.state(event)
        elif isinstance(event, CallEvent):
            return self._call(event)
        elif isinstance(event, StepEvent):
            self._activity.step()
            gradients = self._gradients.step(event)
            return (*self._scale.step(event), *gradients, *self._moves.step(event))
        elif isinstance(event, BatchEvent):
            self._left_out.batch(event)
            return (*_batch(event), *self._padding.batch(event))
        elif isinstance(event, OptimizerEvent):
            self._moves.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._moves.checkpoint(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.PROCESS_GROUP:
            self._scale.grouped(event)
        return ()

    def _call(self, event: CallEvent) -> Sequence[Reading]:
        api = event.api
        self._activity.call(event)
        if event.root:
            return (*self._generated.call(event), *self._activity.root(event))
        if event.exception is not None:
            return ()
        if api in LOSSES and event.grad_enabled:
            self._scale.loss(event)
            left_out = self._left_out.loss(event)
            return (*class_counts(event), *extremes(event), *label_shift(event), *left_out)
        if api == Families.BACKWARD:
            self._scale.backward(event)
            self._gradients.loss(event)
            has_scaled, self._has_scaled = self._has_scaled, False
            return _finite(event, SCALED_LOSS if has_scaled else LOSS)
        if api in SOFTMAXES:
            return _hidden(event)
        if api == ATTENTION:
            return self._padding.call(event)
        if api == Families.SCALE:
            self._has_scaled = True
            self._scale.scaled()
            self._gradients.scaled()
        elif event.family == Families.OPTIMIZER_STEP:
            self._scale.updated(event)
        elif Families.CLIP_NORM in (api, event.family):
            value = number(event.result)
            if value is not None:
                return (Reading(Numbers.CLIPPED_NORM, Families.CLIP_NORM, "", value, event),)
        return ()
