"""Names of the numbers that steps are read for; readings of padding and of the scale of a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings.losses import OVER_CLASSES
from traincheck.readings.reading import Reading
from traincheck.readings.steps import is_judged
from traincheck.schema.events import BatchEvent, CallEvent, MarkEvent, StepEvent
from traincheck.schema.values import number


class Numbers:
    """Names of numbers, as claims have them."""

    LOSS_SCALE = "loss scale"
    SMALLEST, LARGEST = "smallest", "largest"
    CLIPPED_NORM = "norm before clipping"
    GENERATED = "generated"
    GRADIENT_NORM = "gradient norm"
    NON_FINITE = "non-finite"
    LEAST_SHARE = "least share of the gradients"
    DEAD, SATURATED = "dead", "saturated"
    FLAT = "norm above zero"
    CLASSES = "classes"
    MOVED = "moved"
    END_TOKEN, MASK, PADDING = "end token", "mask", "padding"
    AHEAD, HIDDEN, LEFT_OUT = "ahead", "hidden", "left out"


IN_A_ROW = 5  # calls of a loss, at least one of which has padding
UNPADDED = "without padding"  # calls on such batches alone
SCALED_LOSS = "the loss that GradScaler has scaled"
OF_TERMS = "sum"  # a loss as a multiple of the sum of its terms
LOSS, GRADIENT = "the loss", "gradients"  # names of numbers that should be finite


@dataclass(frozen=True, slots=True)
class ScaleReading(Reading):
    """A multiple of a mean loss, or of its terms.

    Attributes:
        is_plain: it results from counting alone.
        sums: functions whose terms were summed.
        backwards: how many backward passes were summed.
    """

    is_plain: bool = True
    sums: frozenset[str] = frozenset()
    backwards: int = 0


_SAME = 1e-3
_CLEAR = 0.02  # distance from none and from a half, where both polarities look alike


@dataclass(slots=True)
class Padding:
    """Compares the boolean masks of attention with the padding of the batch before them."""

    _padding: float | None = None
    _shape: Sequence[int] = ()

    def batch(self, event: BatchEvent) -> Sequence[Reading]:
        """A batch came: whether labels lack the end token and whether padding is attended to."""
        padding = event.tokens.get("padding")
        self._padding = float(padding) if isinstance(padding, (int, float)) else None
        shapes = [leaf["shape"] for leaf in event.leaves.values() if isinstance(leaf, dict)]
        self._shape = shapes[0] if shapes else ()
        if self._padding is None:
            return ()
        found = []
        lost = "lost_end" in event.tokens
        if lost or event.tokens.get("token_labels"):  # classes and tags hold no end
            found.append(Reading(Numbers.END_TOKEN, event.loader, "", float(lost), event))
        attended = event.tokens.get("attended_padding")
        if attended or (attended == 0 and self._padding):
            found.append(Reading(Numbers.PADDING, event.loader, "", float(attended > 0), event))
        return found

    def call(self, event: CallEvent) -> Sequence[Reading]:
        """Whether attention leaves out the padding (1) or all but the padding (0)."""
        mask = event.args.get("attn_mask")
        if not isinstance(mask, dict) or mask.get("dtype") != "bool" or self._padding is None:
            return ()
        shape, zeros = mask["shape"], (mask.get("stats") or {}).get("zeros")
        if zeros is None or [shape[0], shape[-1]] != [*self._shape[:1], *self._shape[1:2]]:
            return ()
        padding = self._padding
        if min(padding, 1 - padding, abs(padding - 0.5)) < _CLEAR:
            return ()
        for value, share in ((1.0, padding), (0.0, 1 - padding)):
            if abs(zeros - share) <= _SAME:
                return (Reading(Numbers.MASK, event.api, "", value, event),)
        return ()


_COUNTED = 1e-4  # how far the divisor of a sum may be from a whole number


@dataclass(slots=True)
class LossScale:
    """The losses passed to backward() over one update, as a multiple of the mean loss.

    The mean of a sum is taken over valid labels, or elements. Nothing is known if a backward had
    several losses or none, if losses are scaled for half precision or are on a GPU, or if an
    optimizer searches and calls its closure several times.

    The multiple of the sum is read too, on average: the number of terms of a batch is a setting.
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
        """The loss passed to the next backward is not known."""
        self._is_known = False

    def grouped(self, event: MarkEvent) -> None:
        """There are several ranks."""
        self._ranks = event.world_size or 1

    def backward(self, event: CallEvent) -> None:
        """Compare the loss passed to backward with the one loss before it."""
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
        # The divisor of a sum should be a count
        counted = abs(self._ranks / scale) if scale else 0.5
        self._is_plain &= abs(counted - round(counted)) <= _COUNTED * max(counted, 1)
        self._total += scale * _terms(loss)
        self._of_terms += scale
        self._sums |= {loss.api}

    def updated(self, event: CallEvent) -> None:
        """An optimizer has stepped. Backwards within its step, except one, are no part of a sum."""
        self._is_known &= sum(begun >= event.start_ns for begun in self._begun) <= 1

    def step(self, event: StepEvent) -> Sequence[ScaleReading]:
        """The update is over."""
        found: Sequence[ScaleReading] = ()
        backwards = len(self._begun)
        if is_judged(event) and self._is_known and backwards:
            scales = {"": self._total, OF_TERMS: self._of_terms / backwards}
            found = [
                ScaleReading(
                    Numbers.LOSS_SCALE,
                    "",
                    name,
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
