"""Losses of prediction and target of different shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from traincheck.readings.losses import as_loss, given, loss_needs
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LossBroadcast, Source
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families, losses
from traincheck.schema.values import tensors_in

LOSSES = tuple(sorted(losses("value")))


class LossBroadcasts(BuiltInRule, code="TC313", severity="error"):
    """loss-broadcasts: input and target of a loss broadcast to all pairs of samples.

    What it checks:
        Input and target of mse_loss, l1_loss, smooth_l1_loss and huber_loss do not broadcast to a
        shape larger than both.

    Why it matters:
        With shapes (N, 1) and (N,) the loss compares each prediction with each target. The best
        answer is then the mean of all targets, for every sample.

    Fires on:
        - Such a pair of shapes.
        - Input (N,) and target (N, N), if the target was broadcast from (N,) and (N, 1) before.

    Stays quiet on:
        - Equal shapes.
        - One number, or one row, as target of all predictions, or as prediction of other numbers.
        - Losses without gradients.

    Fix:
        Give both the same shape: prediction.squeeze(-1) or target.unsqueeze(-1).

    Source:
        https://github.com/pytorch/pytorch/issues/16045
    """

    title = "{subject} compares each prediction with each target"
    likely_cause = (
        "{observed}: the shapes broadcast, so the loss is taken over all pairs of samples."
    )
    fix = "Give both the same shape: squeeze(-1) the prediction or unsqueeze(-1) the target."
    needs = loss_needs(*LOSSES, numbers=False)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, LOSSES)
        if call is None:
            return []
        prediction, target = given(call, "input"), given(call, "target")
        if prediction is None or target is None:
            return []
        self.triggered += 1
        if prediction.shape == target.shape:
            return []
        # Number of elements of the shape that both broadcast to.
        first = prediction.shape
        second = target.shape
        count = max(len(first), len(second))
        a, b = (1,) * (count - len(first)) + first, (1,) * (count - len(second)) + second
        pairs = math.prod(max(x, y) for x, y in zip(a, b))
        is_more = pairs > max(math.prod(prediction.shape), math.prod(target.shape))
        # Whether there is a target for each pair of samples, e.g. because the target was broadcast.
        if not is_more and not (
            len(prediction.shape) == 1
            and prediction.shape[0] > 1
            and target.shape == prediction.shape * 2
        ):
            return []
        name = call.api.rpartition(".")[2]
        observed = f"input {list(prediction.shape)}, target {list(target.shape)}"
        return [
            loss_violation(
                self.code,
                call,
                f"shapes of input and target of {name} broadcast to {pairs} pairs; {observed}",
                expected="the same shape for both",
                observed=observed,
            )
        ]


_ENOUGH = 2  # steps
_FEWEST = 4  # samples: two or three may be the number of classes or quantiles
_MOST_MARKS = 64  # marks of one step
_PAIR = 2
# Nodes that pair samples on purpose, and nodes that may add a dim to do so.
_SPREADING = frozenset({"Unsqueeze", "Permute", "Transpose", "T", "AsStrided"})
_VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias", "Alias", "Squeeze", "Expand"})
# Nodes that keep one number per sample in place.
_SCALING = frozenset({
    "Abs", "Clamp", "ClampMax", "ClampMin", "Clone", "Div", "Exp", "Log", "Log1P", "LogSigmoid",
    "Mul", "Neg", "Pow", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh", "ToCopy",
})  # fmt: skip
_LEAF = "AccumulateGrad"
_WORDS = {
    "Add": "an addition", "Div": "a division", "Maximum": "a maximum", "Minimum": "a minimum",
    "Mul": "a product", "Rsub": "a difference", "Sub": "a difference",
}  # fmt: skip


class _Source(NamedTuple):
    """A node that produced an input."""

    name: str
    shape: tuple[int, ...]


class _Pairs(NamedTuple):
    """An operation over all pairs of ``size`` samples."""

    name: str
    shape: tuple[int, ...]
    given: tuple[int, ...]
    size: int


_Record: TypeAlias = tuple[Event, LossBroadcast]  # record before a backward pass


class BroadcastInOwnLoss(EventRule, code="TC331"):
    """broadcast-in-own-loss: a custom loss is taken over all pairs of samples.

    What it checks:
        In a custom loss, e.g. ((prediction - target) ** 2).mean(), no operation turns one number
        per sample into a matrix of all pairs of samples.

    Why it matters:
        Shapes (N, 1) and (N,) broadcast to (N, N). Each prediction is compared with each target, or
        each weight or advantage is applied to each sample. The best answer is then the same for all
        samples. Nothing fails, and the loss falls.

    Fires on:
        - Two steps in which an operation of a loss has a result of N x N elements that enters the
          loss only through a sum or mean. Gradients flow into only one of its inputs, which has N
          elements, one for each sample of the batch.

    Stays quiet on:
        - Intended pairs: two inputs with gradients, e.g. in ranking and contrastive losses.
        - An input prepared by unsqueeze(), None, expand() or a transposition.
        - Matrices of masks or kernels over a result that already is a matrix.
        - Results that are summed over one dim and used further, e.g. in Cox regression.
        - Quantiles and bins, whose number differs from the number of samples.
        - Batches of fewer than 4 samples.
        - mse_loss and similar losses (TC313).

    Fix:
        Give both the same shape: prediction.squeeze(-1), or target.view_as(prediction).

    Source:
        https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    """

    title = "A loss is taken over all pairs of samples of a batch"
    likely_cause = "In a loss {observed}: shapes of (N, 1) and (N,) broadcast."
    fix = (
        "Give both the same shape: squeeze(-1) the tensor of shape (N, 1), or view_as() the other."
    )
    needs = needs_of(LossBroadcast) | Needs(
        calls=frozenset({Families.BACKWARD, Families.MODULE}), kinds=frozenset({"batch", "step"})
    )
    _sizes: set[int] = fresh(set)  # sizes of batches and model inputs
    _calls: Counter[str | None] = fresh(Counter)  # an agent: a call per row
    _before: dict[str, _Record] = fresh(dict)  # by stream, before the backward pass
    _records: list[tuple[CallEvent, _Record]] = fresh(list)
    _first: dict[object, Violation] = fresh(dict)
    _steps: Counter[object] = fresh(Counter)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            sizes, self._sizes = self._sizes.union(self._calls.values()), set()
            self._calls.clear()
            records, self._records = self._records, []
            found: dict[object, Violation] = {}
            for call, (mark, broadcasts) in records:
                self.triggered += 1
                for pairs in _pairs(broadcasts):
                    if pairs.size in sizes:
                        place = call.where, pairs.name, len(pairs.given)
                        other = [pairs.size] if len(pairs.given) > 1 else [pairs.size, 1]
                        word = _WORDS.get(pairs.name, f"an operation ({pairs.name})")
                        found.setdefault(
                            place,
                            self.violation(
                                mark,
                                subject=Subject(api=call.api),
                                symptom=Symptom.LOSS_INPUT,
                                message=f"{word} in a loss is taken over all pairs of {pairs.size} "
                                "samples",
                                expected=f"the same shape for both, with {pairs.size} elements",
                                observed=f"{word} of {[*pairs.given]} and a tensor such as {other} "
                                f"gives {[*pairs.shape]}",
                                evidence=(call,),
                            ),
                        )
            self._steps.update(found.keys())
            self._first = {**found, **self._first}
            return [self._first[place] for place in found if self._steps[place] == _ENOUGH]
        if isinstance(event, BatchEvent):
            self._count(event.leaves)
        elif (broadcast := observed(event, LossBroadcast)) is not None:
            self._before[event.stream] = event, broadcast
        elif isinstance(event, CallEvent):
            if event.api == Families.BACKWARD:
                record = self._before.pop(event.stream, None)
                if record is not None and len(self._records) < _MOST_MARKS:
                    self._records.append((event, record))
            elif event.root and event.grad_enabled:
                self._count(event.args)
                self._calls[event.module] += 1
        return []

    def _count(self, values: Mapping[str, Any]) -> None:
        self._sizes.update(t.shape[0] for t in tensors_in(values).values() if t.shape)


def _pairs(broadcasts: LossBroadcast) -> list[_Pairs]:
    """Operations over all pairs of samples by mistake. Empty if pairs are intended."""
    found: list[_Pairs] = []
    for operation in broadcasts.operations:
        shape = operation.shape
        inputs = [each for each in operation.inputs if each is not None]
        sides = [size for size in shape if size > 1]
        if len(sides) != _PAIR or sides[0] != sides[1]:
            continue
        if len(inputs) != 1:  # gradients flow to both sides of the pairs
            return []
        sources = [*_sources(inputs[0])]
        # One number per sample, with the samples in the first dim
        rows, *rest = (sources[0].shape if sources else ()) or (0,)
        is_each = rows == sides[0] and all(size == 1 for size in rest)
        if is_each and sides[0] >= _FEWEST and not _is_intended(sources):
            name = _kind(operation.node)
            found.append(_Pairs(name, shape, sources[0].shape, sides[0]))
    return found


def _sources(given: Sequence[Source]) -> Iterator[_Source]:
    """The nodes that an input comes from, up to the first of unknown size."""
    for name, shape in given:
        if shape is None:
            return
        yield _Source(_kind(name), shape)


def _kind(node: str) -> str:
    return node.partition("Backward")[0]


def _is_intended(sources: Sequence[_Source]) -> bool:
    """Whether an input was reshaped to be paired, or is a parameter of a model."""
    for (name, shape), before in zip_longest(sources, sources[1:]):
        if name in _VIEWS:
            return before is None or len(before.shape) < len(shape)
        if name not in _SCALING:
            return name == _LEAF or name in _SPREADING
    return False
