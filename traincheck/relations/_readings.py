"""Numbers that a training run shows again and again, each under a key. Judges nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.relations._variables import is_judged
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    Event,
    Families,
    MarkEvent,
    StateEvent,
    StepEvent,
)

LOSS_SCALE = "loss scale"
SMALLEST, LARGEST = "smallest", "largest"
CLIPPED_NORM = "norm before clipping"
GENERATED = "generated"
GRADIENT_NORM = "gradient norm"
NON_FINITE = "non-finite"
QUANTITIES = frozenset(
    {NON_FINITE, LOSS_SCALE, SMALLEST, LARGEST, CLIPPED_NORM, GENERATED, GRADIENT_NORM}
)
LOSSES = tuple(
    f"torch.nn.functional.{name}"
    for name in (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
        "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss",
    )
)  # fmt: skip
_LOSSES = frozenset(LOSSES)
LOSS, GRADIENT = "the loss", "gradients"  # of which it is told whether they are finite
_COUNTED = 1e-4  # how far what a sum is divided by may be from a whole number
_MIN_ELEMENTS = 16  # fewer may all be of one sign by chance
_TOKENS_NDIM = 2
_SECOND = 2


class Key(NamedTuple):
    """What a number is of: of an API's argument, of a module, or of the program as a whole."""

    quantity: str
    api: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One number.

    is_plain: nothing but counting went into it. sums: functions whose terms were added up.
    begins: a series of readings.
    """

    key: Key
    value: float
    event: Event
    is_plain: bool = True
    sums: frozenset[str] = frozenset()
    begins: bool = False


def _number(value: Any) -> float | None:
    """A number, or the one in a 0-dim tensor; None if it is not known or not finite."""
    if isinstance(value, Mapping):
        value = value.get("value")
    elif isinstance(value, list) and len(value) == 1:
        return _number(value[0])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


@dataclass(slots=True)
class LossScale:
    """What backward is given over one update, as a multiple of the mean that the loss stands for.

    Of a sum the mean is taken over valid labels, or elements. Nothing is known where a backward
    had several losses or none, where they are scaled for half precision, or on a GPU.
    """

    _losses: list[tuple[str, float, float | None]] = field(default_factory=list)
    _total: float = 0.0
    _is_known: bool = True
    _is_plain: bool = True
    _sums: frozenset[str] = frozenset()
    _backwards: int = 0
    _ranks: int = 1

    def loss(self, event: CallEvent) -> None:
        """A loss was computed."""
        self._losses.append((event.api, _number(event.result) or 0.0, _terms(event)))

    def scaled(self) -> None:
        """What backward will be given is no longer known."""
        self._is_known = False

    def grouped(self, event: MarkEvent) -> None:
        """There are several ranks."""
        self._ranks = int(event.data.get("world_size") or 1)

    def backward(self, event: CallEvent) -> None:
        """Compare what backward is given with the one loss before it."""
        given = _number(event.args.get("tensors"))
        losses, self._losses = self._losses, []
        if len(losses) != 1 or given is None or not losses[0][1]:
            self._is_known = False
            return
        api, loss, terms = losses[0]
        scale = given / loss
        if terms is not None:  # of a sum: what it is divided by should be a count
            counted = abs(self._ranks / scale) if scale else 0.5
            self._is_plain &= abs(counted - round(counted)) <= _COUNTED * max(counted, 1)
            scale *= terms
            self._sums |= {api}
        self._total += scale
        self._backwards += 1

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        found: Sequence[Reading] = ()
        if is_judged(event) and self._is_known and self._backwards:
            key = Key(LOSS_SCALE)
            found = (Reading(key, self._total, event, self._is_plain, self._sums),)
        self._losses.clear()
        self._total, self._backwards = 0.0, 0
        self._is_known = self._is_plain = True
        self._sums = frozenset()
        return found


def _terms(event: CallEvent) -> float | None:
    """How many terms a sum has; None of a mean."""
    if event.args.get("reduction") != "sum":
        return None
    target = event.args.get("target")
    if not isinstance(target, Mapping) or "shape" not in target:
        return 1.0
    ignored = float((target.get("stats") or {}).get("ignored", 0.0))
    return math.prod(target["shape"]) * (1.0 - ignored)


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
        for quantity, stat in ((SMALLEST, "min"), (LARGEST, "max")):
            value = _number(stats.get(stat))
            if value is not None:
                yield Reading(Key(quantity, event.api, name), value, event)


def _finite(event: CallEvent) -> Sequence[Reading]:
    """Whether what backward is given is a number; nothing where that is not known."""
    given = event.args.get("tensors")
    value = given.get("value") if isinstance(given, Mapping) else None
    if value is None:
        return ()
    return (Reading(Key(NON_FINITE, name=LOSS), float(isinstance(value, str)), event),)


def _batch(event: BatchEvent) -> Sequence[Reading]:
    """Whether each part of a batch is finite, where numbers of them are taken."""
    return [
        Reading(Key(NON_FINITE, event.loader, path), float(leaf["stats"]["nonfinite"]), event)
        for path, leaf in event.leaves.items()
        if isinstance(leaf, Mapping) and "nonfinite" in (leaf.get("stats") or {})
    ]


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


@dataclass(slots=True)
class GradientNorm:
    """The norm of all gradients that an update finds; nothing where they are scaled."""

    _squares: dict[str, float] = field(default_factory=dict)
    _is_scaled: bool = False
    _non_finite: StateEvent | None = None  # the first gradient in this step that is
    _is_told: bool = False  # whether numbers of gradients are

    def state(self, event: StateEvent) -> None:
        """A gradient came, changed or went."""
        stats = event.summary.stats if event.summary is not None else None
        norm = _number(stats.get("norm")) if stats else None
        if stats and "nonfinite" in stats:
            self._is_told = True
            if stats["nonfinite"] and self._non_finite is None:
                self._non_finite = event
        self._squares.pop(event.name, None)
        if norm is not None:
            self._squares[event.name] = norm * norm

    def scaled(self) -> None:
        """Gradients are larger than they should be, on purpose."""
        self._is_scaled = True

    def step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        wrong, self._non_finite = self._non_finite, None
        is_told, self._is_told = self._is_told, False
        if self._is_scaled or not is_judged(event):
            return ()
        found = []
        if is_told:
            at = event if wrong is None else wrong
            found.append(Reading(Key(NON_FINITE, name=GRADIENT), float(wrong is not None), at))
        if self._squares:
            norm = math.sqrt(sum(self._squares.values()))
            found.append(Reading(Key(GRADIENT_NORM), norm, event))
        return found


class Readings:
    """All of them, each told of what concerns it."""

    def __init__(self) -> None:
        self._scale = LossScale()
        self._generated = Generated()
        self._norm = GradientNorm()

    def observe(self, event: Event) -> Sequence[Reading]:
        """The numbers that an event tells."""
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._norm.state(event)
        elif isinstance(event, CallEvent):
            return self._call(event)
        elif isinstance(event, StepEvent):
            return (*self._scale.step(event), *self._norm.step(event))
        elif isinstance(event, BatchEvent):
            return _batch(event)
        elif isinstance(event, MarkEvent) and event.text == "process group":
            self._scale.grouped(event)
        return ()

    def _call(self, event: CallEvent) -> Sequence[Reading]:
        api = event.api
        if event.root:
            return self._generated.call(event)
        if event.exception is not None:
            return ()
        if api in _LOSSES and event.grad_enabled:
            self._scale.loss(event)
            return tuple(_extremes(event))
        if api == Families.BACKWARD:
            self._scale.backward(event)
            return _finite(event)
        if api == Families.SCALE:
            self._scale.scaled()
            self._norm.scaled()
        elif api == Families.CLIP_NORM:
            value = _number(event.result)
            if value is not None:
                return (Reading(Key(CLIPPED_NORM, api), value, event),)
        return ()
