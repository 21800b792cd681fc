"""A model is evaluated on inputs that are scaled otherwise than those of training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.facts.losses import number
from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.batches import is_image
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Topic, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.model_inputs import ModelInputs
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import TensorSummary, tensor_summary

_LOOKS = 3  # at calls of each kind, before they are compared
_KEPT = 16  # the latest
_TIMES = 16.0  # as large, which no augmentation and no other data makes
_TABLE = 2  # dims of a batch, at least
_SEQUENCE = 3  # dims whose last one, not the second, holds the features
# Images between 0 and 1, and others that are normalized.
_ONE, _BRIGHT = 1.001, 0.5
_BELOW, _SHIFT, _WIDER = -0.3, 0.1, 1.5


class TrainEvalPreprocessingMismatch(
    EventRule, code="TC327", aliases=("evaluated-on-another-scale",)
):
    """train-eval-preprocessing-mismatch: inputs of evaluation are not scaled as those of training.

    What it checks:
        What a model is given without gradients, in evaluation mode, has about the size of what it
        is given in training; images are normalized in both, or in neither.

    Why it matters:
        A transform that is missing on one side (Normalize, ToTensor, a scaler that was fitted)
        makes validation look far worse than the model is, or chooses the wrong one. Nothing fails.

    Fires on:
        Three looks or more on each side, of which each in evaluation differs from each in training:
        sixteen times as large or as wide; or images of values in 0..1 against others that reach
        below -0.3, are 1.5 times as wide and have another mean.

    Stays quiet on:
        Augmentation, noise and mixtures of samples (the mean stays); other data of about the same
        size; constant inputs, as for a summary or an export; single rows, as an agent acts on;
        whole numbers (tokens); models that are only trained, or only evaluated.

    Fix:
        Use the same normalization in both transforms.

    Source:
        https://discuss.pytorch.org/t/normalization-in-the-mnist-example/457
    """

    title = "{subject} is evaluated on inputs that are scaled otherwise than in training"
    likely_cause = "One of two transforms lacks a step: {observed}, {expected}."
    fix = "Use the same normalization for training and for evaluation."
    needs = needs_of(ModelInputs)

    def __init__(self) -> None:
        super().__init__()
        self._sides: dict[_Key, _Sides] = {}
        self._told: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        given, found = observed(event, ModelInputs), []
        if given is None:
            return []
        for name, value in given.inputs.items():
            tensor = tensor_summary(value)
            if tensor is None or len(tensor.shape) < _TABLE:
                continue
            look = _look(tensor)
            if look is None:
                continue
            self.triggered += 1
            key = _key(event.rank, given.model, name, tensor)
            sides = self._sides.setdefault(key, _Sides())
            (sides.training if given.training else sides.evaluation).append(look)
            sides.is_image &= is_image(tensor)
            if given.model not in self._told and sides.differ():
                self._told.add(given.model)
                found.append(self._violation(event, given.model, name, sides))
        return found

    def _violation(self, event: Event, model: str, name: str, sides: _Sides) -> Violation:
        training, evaluation = _said(sides.training), _said(sides.evaluation)
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="eval",
            subject=Subject(module=model),
            symptom=Symptom.WRONG_VALUE,
            topic=Topic.MODE,
            message=f"argument {name} of {model} is scaled otherwise than in training",
            expected=f"in training {training}",
            observed=f"in evaluation {evaluation}",
            evidence=(event,),
        )


class _Look(NamedTuple):
    """The numbers of one input."""

    low: float
    high: float
    mean: float
    std: float

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


def _looks() -> deque[_Look]:
    return deque(maxlen=_KEPT)


@dataclass(slots=True)
class _Sides:
    """The latest looks at one input of a model. is_image: all of them were at images."""

    training: deque[_Look] = field(default_factory=_looks)
    evaluation: deque[_Look] = field(default_factory=_looks)
    is_image: bool = True

    def differ(self) -> bool:
        """Whether each look on one side differs from each on the other."""
        ours, theirs = self.training, self.evaluation
        if min(len(ours), len(theirs)) < _LOOKS:
            return False
        pairs = ((ours, theirs), (theirs, ours))
        return any(_is_larger(*pair) or (self.is_image and _is_plain(*pair)) for pair in pairs)


_Key = tuple[int, str, str, int, int]  # rank, model, input, number of dims, features


def _key(rank: int, model: str, name: str, tensor: TensorSummary) -> _Key:
    dims = len(tensor.shape)
    features = tensor.shape[-1] if dims == _SEQUENCE else tensor.shape[1]
    return rank, model, name, dims, features


def _look(tensor: TensorSummary) -> _Look | None:
    """None of what is constant, holds no number, or was not looked at."""
    found = [number(tensor, name) for name in ("min", "max", "mean", "std")]
    low, high, mean, std = found
    if low is None or high is None or mean is None or std is None or not std > 0:
        return None
    return _Look(low, high, mean, std)


def _is_larger(some: Sequence[_Look], others: Sequence[_Look]) -> bool:
    """Whether the smallest of some is many times as large, and as wide, as any of the others."""
    size = min(look.size for look in some) > _TIMES * max(look.size for look in others)
    return size and min(look.std for look in some) > _TIMES * max(look.std for look in others)


def _is_plain(some: Sequence[_Look], others: Sequence[_Look]) -> bool:
    """Whether some are images in 0..1, and the others normalized."""
    if not all(look.low >= 0 and _BRIGHT < look.high <= _ONE for look in some):
        return False
    if not all(look.low <= _BELOW for look in others):
        return False
    wider = min(look.std for look in others) > _WIDER * max(look.std for look in some)
    shift = min(abs(ours.mean - theirs.mean) for ours in some for theirs in others)
    return wider and shift > _SHIFT


def _said(looks: Sequence[_Look]) -> str:
    low, high = min(look.low for look in looks), max(look.high for look in looks)
    mean, std = (sum(values) / len(looks) for values in zip(*[(x.mean, x.std) for x in looks]))
    return f"from {low:.3g} to {high:.3g} (mean {mean:.3g}, standard deviation {std:.3g})"
