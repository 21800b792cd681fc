"""Loss functions: their calls, their arguments, and what backward() gets of them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings import recorded
from traincheck.readings.reading import Key, Reader, Reading
from traincheck.readings.recorded import IN_A_ROW, OF_TERMS, UNPADDED, Numbers
from traincheck.readings.steps import is_judged
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, MarkEvent, StepEvent
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import IGNORED_LABEL, Families
from traincheck.schema.values import TensorSummary, Value, tensor_summary
from traincheck.schema.values import number as finite

F = "torch.nn.functional."
CROSS_ENTROPY = f"{F}cross_entropy"
NLL = f"{F}nll_loss"
OVER_CLASSES = frozenset({CROSS_ENTROPY, NLL})
CTC = f"{F}ctc_loss"
BCE = f"{F}binary_cross_entropy"
BCE_LOGITS = f"{F}binary_cross_entropy_with_logits"
# Losses of an input and a target: the mean, or the sum, of one term for each element or label.
LOSSES = frozenset(
    F + name
    for name in (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
        "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss",
    )
)  # fmt: skip
# How far a sum of probabilities may be from one, by dtype; float32 and float64 else.
_ROUNDING = {"float16": 5e-3, "bfloat16": 3e-2}
_EXACT = 1e-3


def loss_needs(*apis: str, numbers: bool = True) -> Needs:
    """Calls of these losses, and numbers of their arguments."""
    names = frozenset(apis)
    return Needs(calls=names, kinds=frozenset({"step"}), stats=names if numbers else frozenset())


def as_loss(event: Event, apis: Iterable[str]) -> CallEvent | None:
    """The event, if it is a call of one of ``apis`` through which training may backpropagate."""
    if not isinstance(event, CallEvent) or event.api not in apis:
        return None
    return event if event.grad_enabled and event.exception is None else None


def given(call: CallEvent, name: str) -> TensorSummary | None:
    """A tensor argument."""
    return tensor_summary(call.args.get(name))


def number(tensor: TensorSummary | None, name: str) -> float | None:
    """A number of a tensor; None if it was not taken, or not all elements are finite."""
    return None if recorded.non_finite(tensor) else recorded.stats(tensor).get(name)


def bounds(tensor: TensorSummary | None) -> tuple[float, float] | None:
    """The smallest and the largest element; None if they are not known, or not all are finite."""
    return None if recorded.non_finite(tensor) else recorded.extremes(tensor)


def are_next_tokens(tensor: TensorSummary | None) -> bool:
    """Whether these labels are known to be the next tokens of a model's input."""
    return recorded.ahead(tensor) == 1


def are_distributions(tensor: TensorSummary | None) -> bool:
    """Whether the rows of a matrix are probabilities that sum to one."""
    if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] < 2:  # noqa: PLR2004
        return False
    known, (low, high) = bounds(tensor), recorded.row_sums(tensor)
    if known is None or low is None or high is None or known[0] < 0:
        return False
    slack = _ROUNDING.get(tensor.dtype, _EXACT)
    return abs(low - 1) <= slack and abs(high - 1) <= slack


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


_LEAST_LIKELY = 0.25  # some probability of any reasonable batch is above it
_ROUNDED = 0.02  # how far the sum of probabilities may be from one, in half precision
_LEAST_MEAN = 0.35  # of initial sigmoid outputs, which are about one half
_MIN_ELEMENTS = 16  # fewer may all have one sign by chance


def loss_elements(event: Event) -> Iterator[Reading]:
    """Smallest and largest element of the arguments of a loss in training."""
    call = as_loss(event, LOSSES)
    if call is None:
        return
    for name in ("input", "target"):
        tensor: Value = call.args.get(name)
        known = recorded.extremes(tensor)
        if known is None or math.prod(tensor["shape"]) < _MIN_ELEMENTS * (name == "input"):
            continue
        low, high = map(finite, known)
        if low is None or high is None or _are_scores(call.api, name, tensor):
            continue
        if name == "input" and low == high:  # a head that begins at zero gives one number for all
            continue
        yield Reading(Numbers.SMALLEST, call.api, name, low, call)
        yield Reading(Numbers.LARGEST, call.api, name, high, call)


def _are_scores(api: str, name: str, tensor: Mapping[str, Value]) -> bool:
    """Whether these are not probabilities though none is below zero, as of few classes at first."""
    known = recorded.extremes(tensor)
    assert known is not None
    low, high = known
    if api == BCE_LOGITS:
        return low >= 0 and not _LEAST_LIKELY <= high <= 1
    if api != CROSS_ENTROPY or name != "input" or low <= 0:  # zero itself is where ReLU cuts off
        return False
    classes = class_count(tensor["shape"])
    if not 1 / classes <= high <= 1:
        return True
    least, most = map(finite, recorded.row_sums(tensor))
    if least is None or most is None or 1 - _ROUNDED < least <= most < 1 + _ROUNDED:
        return False
    return most < _LEAST_MEAN * classes


def class_count(scores: Sequence[int]) -> int:
    """The number of classes of scores of this shape, which has dims."""
    return scores[min(1, len(scores) - 1)]


def class_counts(event: Event) -> Iterator[Reading]:
    """The number of classes of cross_entropy, whose labels are whole numbers."""
    call = as_loss(event, (CROSS_ENTROPY,))
    scores, labels = (given(call, n) for n in ("input", "target")) if call else (None, None)
    if call and scores and scores.shape and labels and labels.dtype == "int64":
        yield Reading(Numbers.CLASSES, call.api, "", class_count(scores.shape), call)


def label_shift(event: Event) -> Iterator[Reading]:
    """Whether a target is one token ahead of the input of the model; *loss* covers two."""
    call = as_loss(event, OVER_CLASSES)
    value = finite(recorded.ahead(call.args.get("target"))) if call else None
    if call and value in (0, 1):
        yield Reading(Numbers.AHEAD, call.api, "", value, call)


class IgnoredLabels(Reader):
    """Whether a loss ignores some labels in a few calls in a row.

    Calls on batches without padding have readings of their own: their prompts may be ignored. A
    loop may fetch a batch ahead, so both of the last two batches must have padding, or none.
    """

    def __init__(self) -> None:
        self._calls: dict[Key, list[tuple[float, float, bool]]] = defaultdict(list)
        self._padding: deque[Value] = deque(maxlen=2)

    def observe(self, event: Event) -> Sequence[Reading]:
        if isinstance(event, BatchEvent) and event.stage == "train":
            self._padding.append(recorded.padding(event))
        call = as_loss(event, OVER_CLASSES)
        return () if call is None else self._loss(call)

    def _loss(self, event: CallEvent) -> Sequence[Reading]:
        """A loss was called. A single row has no padding."""
        target = given(event, "target")
        low, high = map(finite, recorded.extremes(target) or (None, None))
        if target is None or low is None or high is None or target.shape[:1] == (1,):
            return ()
        ignored = recorded.ignored_label(event)
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


def scale_of(backward: CallEvent, loss: float) -> float | None:
    """The loss that a backward pass got, as a multiple of a computed one; None if not known."""
    given = finite(backward.args.get("tensors"))
    return given / loss if given is not None and loss else None


_COUNTED = 1e-4  # how far the divisor of a sum may be from a whole number


@dataclass(slots=True)
class LossScale(Reader):
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

    def observe(self, event: Event) -> Sequence[ScaleReading]:
        if isinstance(event, StepEvent):
            return self._step(event)
        if isinstance(event, MarkEvent):
            if event.text == Marks.PROCESS_GROUP:
                self._ranks = event.world_size or 1
        elif isinstance(event, CallEvent) and not event.root and event.exception is None:
            if event.api in LOSSES:
                if event.grad_enabled:
                    self._losses.append((event, finite(event.result) or 0.0))
            elif event.api == Families.BACKWARD:
                self._backward(event)
            elif event.api == Families.SCALE:
                self._is_known = False  # the loss passed to the next backward
            elif event.family == Families.OPTIMIZER_STEP:
                # Backwards within its step, except one, are no part of a sum.
                inside = sum(begun >= event.start_ns for begun in self._begun)
                self._is_known &= inside <= 1
        return ()

    def _backward(self, event: CallEvent) -> None:
        """Compare the loss passed to backward with the one loss before it."""
        losses, self._losses = self._losses, []
        scale = scale_of(event, losses[0][1]) if len(losses) == 1 else None
        if scale is None:
            self._is_known = False
            return
        loss = losses[0][0]
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

    def _step(self, event: StepEvent) -> Sequence[ScaleReading]:
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
    target = given(event, "target")
    return math.nan if target is None else math.prod(target.shape) or math.nan


def _terms(event: CallEvent) -> float:
    """How many terms a sum has; NaN where its labels were not counted."""
    target = given(event, "target")
    if target is None:
        return 1.0
    if event.api in OVER_CLASSES and not target.stats:
        return math.nan
    return _elements(event) * (1.0 - (recorded.ignored(target) or 0.0))
