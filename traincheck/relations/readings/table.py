"""Numbers that a training run shows again and again, each under a key. Judges nothing."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.facts.losses import BCE_LOGITS, CROSS_ENTROPY, OVER_CLASSES
from traincheck.facts.steps import is_judged
from traincheck.relations.readings.first_updates import Moves
from traincheck.relations.readings.gradient_sizes import Activity, Gradients
from traincheck.relations.readings.padding import Padding
from traincheck.relations.readings.reading import (
    AHEAD,
    CLASSES,
    CLIPPED_NORM,
    GENERATED,
    HIDDEN,
    IN_A_ROW,
    LARGEST,
    LEFT_OUT,
    LOSS,
    LOSS_SCALE,
    NON_FINITE,
    OF_TERMS,
    SCALED_LOSS,
    SMALLEST,
    UNPADDED,
    Key,
    Reading,
)
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
from traincheck.schema.values import Value, number

LOSSES = tuple(
    f"torch.nn.functional.{name}"
    for name in (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
        "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss",
    )
)  # fmt: skip
_LOSSES = frozenset(LOSSES)
_COUNTED = 1e-4  # how far what a sum is divided by may be from a whole number
_LEAST_LIKELY = 0.25  # of probabilities: one of them, in any batch worth a word, is above it
_ROUNDED = 0.02  # how far the sum of probabilities may be from one, in half precision
_LEAST_MEAN = 0.35  # of what a sigmoid gives at first, which is about one half
_MIN_ELEMENTS = 16  # fewer may all be of one sign by chance
_TOKENS_NDIM = 2
_SECOND = 2


@dataclass(slots=True)
class LossScale:
    """What backward is given over one update, as a multiple of the mean that the loss stands for.

    Of a sum the mean is taken over valid labels, or elements. Nothing is known where a backward
    had several losses or none, where they are scaled for half precision, or on a GPU; or where an
    optimizer searches: it has its closure compute one loss again and again.

    It is read as a multiple of the sum, too, on average: how many terms a batch has is a setting.
    """

    _losses: list[tuple[CallEvent, float]] = field(default_factory=list)
    _total: float = 0.0
    _of_terms: float = 0.0
    _is_known: bool = True
    _is_plain: bool = True
    _sums: frozenset[str] = frozenset()
    _begun: list[int] = field(default_factory=list)  # when each backward began
    _ranks: int = 1

    def loss(self, event: CallEvent) -> None:
        """A loss was computed."""
        self._losses.append((event, number(event.result) or 0.0))

    def scaled(self) -> None:
        """What backward will be given is no longer known."""
        self._is_known = False

    def grouped(self, event: MarkEvent) -> None:
        """There are several ranks."""
        self._ranks = event.world_size or 1

    def backward(self, event: CallEvent) -> None:
        """Compare what backward is given with the one loss before it."""
        given = number(event.args.get("tensors"))
        losses, self._losses = self._losses, []
        if len(losses) != 1 or given is None or not losses[0][1]:
            self._is_known = False
            return
        loss, value = losses[0]
        scale = given / value
        self._begun.append(event.start_ns)
        if loss.args.get("reduction") != "sum":
            self._total += scale
            self._of_terms += scale / _elements(loss)
            return
        if _elements(loss) == 1:  # whether it is divided by their number is not known
            self._is_known = False
            return
        # What a sum is divided by should be a count
        counted = abs(self._ranks / scale) if scale else 0.5
        self._is_plain &= abs(counted - round(counted)) <= _COUNTED * max(counted, 1)
        self._total += scale * _terms(loss)
        self._of_terms += scale
        self._sums |= {loss.api}

    def updated(self, event: CallEvent) -> None:
        """An optimizer has stepped: those within its step, but for one, are no part of a sum."""
        self._is_known &= sum(begun >= event.start_ns for begun in self._begun) <= 1

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        found: Sequence[Reading] = ()
        backwards = len(self._begun)
        if is_judged(event) and self._is_known and backwards:
            scales = {"": self._total, OF_TERMS: self._of_terms / backwards}
            found = [
                Reading(
                    Key(LOSS_SCALE, name=name),
                    scale,
                    event,
                    is_plain=self._is_plain,
                    sums=self._sums,
                    backwards=0 if name else backwards,
                )
                for name, scale in scales.items()
                if not math.isnan(scale)
            ]
        self._losses.clear()
        self._begun.clear()
        self._total, self._of_terms = 0.0, 0.0
        self._is_known = self._is_plain = True
        self._sums = frozenset()
        return found


def _elements(event: CallEvent) -> float:
    """How many elements the target of a loss has."""
    target = event.args.get("target")
    if not isinstance(target, Mapping) or "shape" not in target:
        return math.nan
    return math.prod(target["shape"]) or math.nan


def _terms(event: CallEvent) -> float:
    """How many terms a sum has; NaN where its labels were not counted."""
    target = event.args.get("target")
    if not isinstance(target, Mapping) or "shape" not in target:
        return 1.0
    if event.api in OVER_CLASSES and not target.get("stats"):
        return math.nan
    ignored = float((target.get("stats") or {}).get("ignored", 0.0))
    return _elements(event) * (1.0 - ignored)


def _extremes(event: CallEvent) -> Iterator[Reading]:
    """Smallest and largest element of what a loss is given in training."""
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
        yield Reading(Key(SMALLEST, event.api, name), low, event)
        yield Reading(Key(LARGEST, event.api, name), high, event)


def _are_scores(api: str, name: str, tensor: Mapping[str, Value]) -> bool:
    """Whether these are no probabilities, though none is below zero, as of few classes at first."""
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


def _classes(event: CallEvent) -> Iterator[Reading]:
    """Among how many classes cross_entropy chooses."""
    given, target = event.args.get("input"), event.args.get("target")
    if event.api == CROSS_ENTROPY and isinstance(given, Mapping) and isinstance(target, Mapping):
        shape = given.get("shape") or ()
        if shape and target.get("dtype") == "int64":
            yield Reading(Key(CLASSES, event.api), shape[min(1, len(shape) - 1)], event)


def _ahead(event: CallEvent) -> Iterator[Reading]:
    """Whether a target is a token ahead of what the model is given; *loss* tells of two."""
    target = event.args.get("target") if event.api in OVER_CLASSES else None
    value = _taken(target, "shifted")
    if value in (0, 1):
        yield Reading(Key(AHEAD, event.api), value, event)


def _hidden(event: CallEvent) -> Sequence[Reading]:
    """How much of later positions attention leaves out, where that was looked at."""
    value = _taken(event.result, "hidden")
    return () if value is None else (Reading(Key(HIDDEN, event.api), value, event),)


def _taken(tensor: Value, name: str) -> float | None:
    """A number of a tensor, if it was taken."""
    stats = tensor.get("stats") if isinstance(tensor, Mapping) else None
    return number(stats.get(name)) if stats else None


def _finite(event: CallEvent, name: str) -> Sequence[Reading]:
    """Whether what backward is given is a number; nothing where that is not known."""
    given = event.args.get("tensors")
    value = given.get("value") if isinstance(given, Mapping) else None
    if value is None:
        return ()
    return (Reading(Key(NON_FINITE, name=name), float(isinstance(value, str)), event),)


def _batch(event: BatchEvent) -> Sequence[Reading]:
    """Whether each part of a batch is finite, where numbers of them are taken."""
    return [
        Reading(Key(NON_FINITE, event.loader, path), float(leaf["stats"]["nonfinite"]), event)
        for path, leaf in event.leaves.items()
        if isinstance(leaf, Mapping) and "nonfinite" in (leaf.get("stats") or {})
    ]


class LeftOut:
    """Whether some labels of a few calls in a row are such that the loss leaves out.

    Calls on batches without padding are told for themselves: there a prompt may be left out. A loop
    may fetch a batch ahead, so both of the last two must have some, or none.
    """

    def __init__(self) -> None:
        self._calls: dict[Key, list[tuple[float, float, bool]]] = defaultdict(list)
        self._padding: deque[Value] = deque(maxlen=2)

    def batch(self, event: BatchEvent) -> None:
        """A batch came: it may tell how much of it is padding."""
        if event.stage == "train":
            self._padding.append(event.tokens.get("padding"))

    def loss(self, event: CallEvent) -> Sequence[Reading]:
        """A loss was called. A single row has no padding."""
        target = event.args.get("target") if event.api in OVER_CLASSES else None
        low, high = _taken(target, "min"), _taken(target, "max")
        if target is None or low is None or high is None or target["shape"][:1] == [1]:
            return ()
        ignored = event.args.get("ignore_index", IGNORED_LABEL)
        is_left_out = ignored in (low, high)
        is_known = bool(self._padding) and None not in self._padding
        is_padded = {bool(share) for share in self._padding} if is_known else set()
        if not is_left_out and (len(is_padded) > 1 or (not is_known and ignored != IGNORED_LABEL)):
            return ()  # an index that was chosen would leave out what has it: there is no padding
        key = Key(LEFT_OUT, event.api, UNPADDED if is_padded == {False} else "")
        calls = self._calls[key]
        calls.append((low, high, is_left_out))
        if len(calls) < IN_A_ROW:
            return ()
        del self._calls[key]
        lows, highs, left_out = zip(*calls)
        if not (is_known or any(left_out)) and len(set(lows)) > 1 and len(set(highs)) > 1:
            return ()  # padding would have one label, that of the least or the last token
        return (Reading(key, float(any(left_out)), event),)


@dataclass(slots=True)
class Generated:
    """How many tokens have been added to a sequence, at each call of the model that adds one."""

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
        key = Key(GENERATED, event.api, module)
        return (Reading(key, calls, event, begins=calls == _SECOND),) if grows else ()


class Readings:
    """All of them, each told of what concerns it."""

    def __init__(self) -> None:
        self._scale = LossScale()
        self._generated = Generated()
        self._gradients = Gradients()
        self._activity = Activity()
        self._padding = Padding()
        self._moves = Moves()
        self._left_out = LeftOut()
        self._has_scaled = False  # the loss of the backward that comes

    def observe(self, event: Event) -> Sequence[Reading]:
        """The numbers that an event tells."""
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
        if api in _LOSSES and event.grad_enabled:
            self._scale.loss(event)
            left_out = self._left_out.loss(event)
            return (*_classes(event), *_extremes(event), *_ahead(event), *left_out)
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
                return (Reading(Key(CLIPPED_NORM, Families.CLIP_NORM), value, event),)
        return ()
