"""Readers of gradients, activations, first updates, attention and batches of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traincheck.readings import recorded
from traincheck.readings.reading import Key, Reader, Reading
from traincheck.readings.recorded import GRADIENT, LOSS, SCALED_LOSS, Numbers
from traincheck.readings.resumptions import brings_back
from traincheck.readings.small_samples import FEWEST_UNITS, has_few, units_of
from traincheck.readings.steps import is_judged
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.torch_api import ATTENTION, SOFTMAXES, Families
from traincheck.schema.values import number, tensor_summary

_SAME = 1e-3
_CLEAR = 0.02  # distance from none and from a half, where both polarities look alike


@dataclass(slots=True)
class Padding(Reader):
    """Compares the boolean masks of attention with the padding of the batch before them."""

    _padding: float | None = None
    _shape: Sequence[int] = ()

    def observe(self, event: Event) -> Sequence[Reading]:
        if isinstance(event, BatchEvent):
            return self._batch(event)
        if isinstance(event, CallEvent) and event.api == ATTENTION and event.exception is None:
            return self._call(event)
        return ()

    def _batch(self, event: BatchEvent) -> Sequence[Reading]:
        """A batch came: whether labels lack the end token and whether padding is attended to."""
        padding = recorded.padding(event)
        self._padding = float(padding) if isinstance(padding, (int, float)) else None
        shapes = [leaf["shape"] for leaf in event.leaves.values() if isinstance(leaf, dict)]
        self._shape = shapes[0] if shapes else ()
        if self._padding is None:
            return ()
        found = []
        is_lost = recorded.lost_end(event) is not None
        if is_lost or event.tokens.get("token_labels"):  # classes and tags hold no end
            found.append(Reading(Numbers.END_TOKEN, event.loader, "", float(is_lost), event))
        attended = recorded.attended_padding(event)
        if attended or (attended == 0 and self._padding):
            found.append(Reading(Numbers.PADDING, event.loader, "", float(attended > 0), event))
        return found

    def _call(self, event: CallEvent) -> Sequence[Reading]:
        """Whether attention leaves out the padding (1) or all but the padding (0)."""
        left_out, padding = excluded(event), self._padding
        if left_out is None or padding is None:
            return ()
        shape = event.args["attn_mask"]["shape"]
        if [shape[0], shape[-1]] != [*self._shape[:1], *self._shape[1:2]]:
            return ()
        if min(padding, 1 - padding, abs(padding - 0.5)) < _CLEAR:
            return ()
        for value, share in ((1.0, padding), (0.0, 1 - padding)):
            if abs(left_out - share) <= _SAME:
                return (Reading(Numbers.MASK, event.api, "", value, event),)
        return ()


def excluded(call: CallEvent) -> float | None:
    """The share of positions that the mask of a call of attention excludes; None if not known."""
    mask = tensor_summary(call.args.get("attn_mask"))
    return recorded.zeros(mask) if mask and mask.dtype == "bool" and mask.shape else None


_MIN_WEIGHTS = 2  # fewer have no shares
_OF_MANY = 2  # examples that a share of units is worth, as it covers many
_SHARES = ((recorded.dead, Numbers.DEAD), (recorded.saturated, Numbers.SATURATED))


@dataclass(slots=True)
class NonFinite(Reader):
    """Whether losses, parts of batches and gradients hold NaN or infinity, as far as is known."""

    _has_scaled: bool = False  # a gradient scaler, the loss of the backward that comes
    _is_scaled: bool = False  # gradients are
    _is_known: bool = False  # some gradient of this step has numbers
    _wrong: StateEvent | None = None  # the first such gradient in this step

    def observe(self, event: Event) -> Iterator[Reading]:
        if isinstance(event, StateEvent):
            found = recorded.non_finite(event) if event.role == "gradient" else None
            self._is_known |= found is not None
            self._wrong = self._wrong or (event if found else None)
        elif isinstance(event, BatchEvent):
            for path, leaf in event.leaves.items():
                found = recorded.non_finite(leaf)
                if found is not None:
                    yield Reading(Numbers.NON_FINITE, event.loader, path, float(found), event)
        elif isinstance(event, CallEvent):
            if event.api == Families.SCALE and event.exception is None:
                self._has_scaled = self._is_scaled = True
            elif event.api == Families.BACKWARD and event.exception is None:
                name = SCALED_LOSS if self._has_scaled else LOSS
                self._has_scaled = False
                loss = alone(event)
                if loss is not None:
                    yield Reading(Numbers.NON_FINITE, "", name, float(math.isnan(loss)), event)
        elif isinstance(event, StepEvent):
            if self._is_known and not self._is_scaled and is_judged(event):
                is_wrong, at = float(self._wrong is not None), self._wrong or event
                yield Reading(Numbers.NON_FINITE, "", GRADIENT, is_wrong, at)
            self._wrong, self._is_known = None, False


def alone(backward: CallEvent) -> float | None:
    """The loss that backward got; NaN if it is not finite, None if it got several or an unknown."""
    given = backward.args.get("tensors")
    return recorded.loss_of(backward) if isinstance(given, dict) else None


@dataclass(slots=True)
class GradientSizes(Reader):
    """Norms of the gradients of an update; nothing if they are scaled."""

    _known: dict[str, StateEvent] = field(default_factory=dict)
    _norms: dict[str, float] = field(default_factory=dict)  # largest in this step, or the last
    _fresh: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)  # cleared, at one end of the step or the other
    _is_scaled: bool = False
    _is_flat: bool = False  # the loss is zero, as a margin loss may be
    _is_lost: bool = False  # the loss is not a number, so gradients are not either
    _is_partial: bool = False  # some have no numbers, as in most steps of a selective view

    def observe(self, event: Event) -> Sequence[Reading]:
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._state(event)
        elif isinstance(event, CallEvent):
            if event.exception is None:
                self._is_scaled |= event.api == Families.SCALE
                if event.api == Families.BACKWARD:
                    self._is_flat |= number(event.args.get("tensors")) == 0
                    loss = alone(event)
                    self._is_lost |= loss is not None and math.isnan(loss)
        elif isinstance(event, StepEvent):
            return self._step(event)
        return ()

    def _state(self, event: StateEvent) -> None:
        """A gradient came, changed or went."""
        norm = number(recorded.norm(event))
        if norm is None:
            self._gone.add(event.name)
            self._is_partial |= event.summary is not None and not event.summary.stats
            return
        self._gone.discard(event.name)
        # A gradient may be cleared before or after: backward computed the largest of a step.
        if event.name not in self._fresh or norm > self._norms[event.name]:
            self._norms[event.name] = norm
            self._known[event.name] = event
        self._fresh.add(event.name)

    def _step(self, event: StepEvent) -> Sequence[Reading]:
        """The update is over."""
        for name in self._gone - self._fresh:
            self._norms.pop(name, None)
        found = self._readings(event) if is_judged(event) and not self._is_scaled else []
        self._is_flat = self._is_lost = self._is_partial = False
        for name in self._gone:
            self._norms.pop(name, None)
        self._fresh.clear()
        self._gone.clear()
        return found

    def _readings(self, event: StepEvent) -> list[Reading]:
        if not self._norms or self._is_lost or self._is_partial or _is_search(event):
            return []
        norm = math.hypot(*self._norms.values())
        largest = self._known[max(self._norms, key=lambda name: self._norms[name])]
        at = largest if largest.step == event.step else event
        found = [Reading(Numbers.GRADIENT_NORM, "", "", norm, at)]
        if norm or not self._is_flat:
            found.append(Reading(Numbers.FLAT, "", "", norm, event))
        weights = [name for name in self._norms if self._is_weight(name)]
        if norm and len(weights) >= _MIN_WEIGHTS:
            name = min(weights, key=lambda name: self._norms[name])
            share = self._norms[name] / norm
            found.append(Reading(Numbers.LEAST_SHARE, "", "", share, self._known[name]))
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
class UnitActivity(Reader):
    """Shares of units that are dead for a whole batch, and of saturated elements."""

    _waiting: list[tuple[str, Key, float, CallEvent]] = field(default_factory=list)

    def observe(self, event: Event) -> Sequence[Reading]:
        if isinstance(event, CallEvent):
            if event.grad_enabled and event.exception is None:
                self._enter(event)
            return self._end(event) if event.root else ()
        if isinstance(event, StepEvent):  # no model's call reaches over the end of a step
            self._waiting.clear()
        return ()

    def _enter(self, event: CallEvent) -> None:
        """A function or module returned a tensor with statistics, in training."""
        if not recorded.stats(event.result):
            return
        summary = tensor_summary(event.result)
        units = 0 if summary is None else units_of(summary.shape)
        for read, quantity in _SHARES:
            value = read(event.result)
            if value is not None and units >= FEWEST_UNITS:
                key = Key(quantity, event.api, event.module or "")
                self._waiting.append((quantity, key, float(value), event))

    def _end(self, event: CallEvent) -> Sequence[Reading]:
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


_OF_FLOAT32 = 2.5e-5  # of the mean size of elements: rounding loses a part of smaller updates

_Group = tuple[str, int]  # an optimizer and the index of a group


# Optimizers that divide by the size of gradients move an element by about the rate, however large
# its gradient is; with the averages that Adam takes, by hardly more in the first ten updates.
@dataclass(slots=True)
class FirstUpdates(Reader):
    """Follows one process. There are no readings of optimizers that continue from a file.

    Each class of optimizer has separate readings: one divides by the size of gradients, another
    does not.
    """

    _groups: dict[str, set[_Group]] = field(default_factory=dict)  # by name of the parameter
    _classes: dict[str, str] = field(default_factory=dict)  # of optimizers
    _moved: dict[str, tuple[float, StateEvent]] = field(default_factory=dict)
    _is_resumed: bool = False

    def observe(self, event: Event) -> Sequence[Reading]:
        if isinstance(event, StateEvent):
            moved = number(recorded.moved(event)) if event.role == "parameter" else None
            if moved is not None and event.change == "content":
                known = self._moved.get(event.name)
                if known is None or known[0] < moved:
                    self._moved[event.name] = (moved, event)
        elif isinstance(event, OptimizerEvent):  # it was created, or its groups changed
            self._classes[event.id] = event.cls
            for groups in self._groups.values():
                groups.difference_update([group for group in groups if group[0] == event.id])
            for index, group in enumerate(event.groups):
                for name in group.params:
                    self._groups.setdefault(name, set()).add((event.id, index))
        elif isinstance(event, CheckpointEvent):
            self._is_resumed |= event.owner is not None and brings_back(event)
        elif isinstance(event, StepEvent):
            return self._step(event)
        return ()

    def _step(self, event: StepEvent) -> Sequence[Reading]:
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
    summary, norm = look.summary, number(recorded.norm(look))
    if summary is None or norm is None:
        return math.inf
    return norm / math.sqrt(max(1, math.prod(summary.shape)))


def hidden_positions(event: Event) -> Sequence[Reading]:
    """The share of later positions that attention leaves out, where it was recorded."""
    if not isinstance(event, CallEvent) or event.root or event.exception is not None:
        return ()
    value = number(recorded.hidden(event.result)) if event.api in SOFTMAXES else None
    return () if value is None else (Reading(Numbers.HIDDEN, event.api, "", value, event),)


def clipped_norms(event: Event) -> Sequence[Reading]:
    """The norm of the gradients that clipping found, in a call that may name no gradient."""
    if not isinstance(event, CallEvent) or event.exception is not None:
        return ()
    is_clip = Families.CLIP_NORM in (event.api, event.family)
    value = recorded.clipped_norm(event) if is_clip else None
    key = Key(Numbers.CLIPPED_NORM, Families.CLIP_NORM)
    return () if value is None else (Reading(*key, value, event),)


_TOKENS_NDIM = 2


@dataclass(slots=True)
class GeneratedTokens(Reader):
    """How many tokens were added to a sequence, at each call of the model that adds one."""

    _lengths: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # rows, length, calls

    def observe(self, event: Event) -> Sequence[Reading]:
        if not isinstance(event, CallEvent) or not event.root:
            return ()
        module = event.module or event.api
        ids = event.args.get("0", event.args.get("input_ids"))
        shape: Sequence[int] = ids.get("shape", ()) if isinstance(ids, dict) else ()
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
