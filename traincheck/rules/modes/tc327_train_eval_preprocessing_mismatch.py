"""A model is evaluated on inputs that are scaled differently than in training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.readings.losses import number
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.batches import is_image
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Topic, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import ModelInputs
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import TensorSummary, tensor_summary

_ENOUGH = 3  # recorded calls of each mode before they are compared
_KEPT = 16  # latest calls kept
_TIMES = 16.0  # times as large: more than augmentation or other data explains
_TABLE = 2  # least number of dims of a batch
_SEQUENCE = 3  # number of dims if the last dim, not the second, holds the features
# Limits that separate images between 0 and 1 from normalized images.
_ONE, _BRIGHT = 1.001, 0.5
_BELOW, _SHIFT, _WIDER = -0.3, 0.1, 1.5


class TrainEvalPreprocessingMismatch(
    EventRule, code="TC327", aliases=("evaluated-on-another-scale",)
):
    """train-eval-preprocessing-mismatch: evaluation and training inputs are scaled differently.

    What it checks:
        Inputs without gradients in evaluation mode have about the same size as inputs in training.
        Images are normalized in both modes, or in neither.

    Why it matters:
        A transform that is missing in one mode (Normalize, ToTensor, a fitted scaler) makes
        validation look far worse than the model, or selects the wrong model. Nothing fails.

    Fires on:
        - At least three recorded calls in each mode, where all inputs of one mode are sixteen times
          as large and as wide as those of the other.
        - Images in at least three recorded calls in each mode: one mode has values in 0..1. In the
          other mode, values reach below -0.3, are 1.5 times as wide and have another mean.

    Stays quiet on:
        - Augmentation, noise and mixtures of samples (the mean stays).
        - Other data of about the same size.
        - Constant inputs, e.g. for a summary or an export.
        - Single rows, e.g. the observations of an agent.
        - Whole numbers (tokens).
        - Models that are only trained, or only evaluated.

    Fix:
        Use the same normalization in both transforms.

    Source:
        https://discuss.pytorch.org/t/normalization-in-the-mnist-example/457
    """

    title = "{subject} is evaluated on inputs that are scaled differently than in training"
    likely_cause = "One of two transforms may lack a step: {observed}, {expected}."
    fix = "Use the same normalization for training and for evaluation."
    needs = needs_of(ModelInputs)
    _sides: dict[_Key, _Sides] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        given, found = observed(event, ModelInputs), []
        if given is None:
            return []
        for name, value in given.inputs.items():
            tensor = tensor_summary(value)
            if tensor is None or len(tensor.shape) < _TABLE:
                continue
            stats = _stats_of(tensor)
            if stats is None:
                continue
            self.triggered += 1
            dims = len(tensor.shape)
            features = tensor.shape[-1] if dims == _SEQUENCE else tensor.shape[1]
            key = event.rank, given.model, name, dims, features
            sides = self._sides.setdefault(key, _Sides())
            (sides.training if given.training else sides.evaluation).append(stats)
            sides.is_image &= is_image(tensor)
            if given.model not in self.reported and sides.differ():
                self.reported.add(given.model)
                training, evaluation = _text(sides.training), _text(sides.evaluation)
                found += self.found(
                    event,
                    stage="eval",
                    subject=Subject(module=given.model),
                    symptom=Symptom.WRONG_VALUE,
                    topic=Topic.MODE,
                    message=f"argument {name} of {given.model} is scaled differently than in "
                    "training",
                    expected=f"in training {training}",
                    observed=f"in evaluation {evaluation}",
                )
        return found


class _Stats(NamedTuple):
    """Statistics of one input."""

    low: float
    high: float
    mean: float
    std: float

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


def _latest() -> deque[_Stats]:
    return deque(maxlen=_KEPT)


@dataclass(slots=True)
class _Sides:
    """The latest statistics of one input of a model.

    Attributes:
        training: in training.
        evaluation: in evaluation mode, without gradients.
        is_image: whether all of them were images.
    """

    training: deque[_Stats] = field(default_factory=_latest)
    evaluation: deque[_Stats] = field(default_factory=_latest)
    is_image: bool = True

    def differ(self) -> bool:
        """Whether each training input differs from each evaluation input."""
        ours, theirs = self.training, self.evaluation
        if min(len(ours), len(theirs)) < _ENOUGH:
            return False
        pairs = ((ours, theirs), (theirs, ours))
        return any(_is_larger(*pair) or (self.is_image and _is_plain(*pair)) for pair in pairs)


_Key = tuple[int, str, str, int, int]  # rank, model, input, number of dims, features


def _stats_of(tensor: TensorSummary) -> _Stats | None:
    """The statistics, or None if the input is constant, not numeric, or not recorded."""
    found = [number(tensor, name) for name in ("min", "max", "mean", "std")]
    low, high, mean, std = found
    if low is None or high is None or mean is None or std is None or not std > 0:
        return None
    return _Stats(low, high, mean, std)


def _is_larger(some: Sequence[_Stats], others: Sequence[_Stats]) -> bool:
    """Whether the smallest of some is many times as large and as wide as all others."""
    size = min(stats.size for stats in some) > _TIMES * max(stats.size for stats in others)
    return size and min(stats.std for stats in some) > _TIMES * max(stats.std for stats in others)


def _is_plain(some: Sequence[_Stats], others: Sequence[_Stats]) -> bool:
    """Whether some are images in 0..1, and the others normalized."""
    if not all(stats.low >= 0 and _BRIGHT < stats.high <= _ONE for stats in some):
        return False
    if not all(stats.low <= _BELOW for stats in others):
        return False
    wider = min(stats.std for stats in others) > _WIDER * max(stats.std for stats in some)
    shift = min(abs(ours.mean - theirs.mean) for ours in some for theirs in others)
    return wider and shift > _SHIFT


def _text(inputs: Sequence[_Stats]) -> str:
    low, high = min(stats.low for stats in inputs), max(stats.high for stats in inputs)
    mean, std = (sum(values) / len(inputs) for values in zip(*[(x.mean, x.std) for x in inputs]))
    return f"from {low:.3g} to {high:.3g} (mean {mean:.3g}, standard deviation {std:.3g})"
