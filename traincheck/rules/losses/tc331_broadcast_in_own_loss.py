"""A loss that the program wrote itself is over all pairs of the samples of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loss_broadcast import LossBroadcast, Source
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensors_in

_ENOUGH = 2  # steps
_FEWEST = 4  # samples; of two or three there may be as many classes, or quantiles
_MOST_MARKS = 64  # of one step
_PAIR = 2
# Nodes that a program writes to pair samples on purpose, and those that may add a dim to do so.
_SPREADING = frozenset({"Unsqueeze", "Permute", "Transpose", "T", "AsStrided"})
_VIEWS = frozenset({"View", "UnsafeView", "ReshapeAlias", "Alias", "Squeeze", "Expand"})
# Nodes that leave each sample where it is, with one number for all of them.
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
    """A node that an input comes from."""

    name: str
    shape: tuple[int, ...]


class _Pairs(NamedTuple):
    """An operation over all pairs of ``size`` samples."""

    name: str
    shape: tuple[int, ...]
    given: tuple[int, ...]
    size: int


_Look: TypeAlias = tuple[Event, LossBroadcast]  # before a backward pass


class BroadcastInOwnLoss(EventRule, code="TC331"):
    """broadcast-in-own-loss: a loss written by hand is over all pairs of samples.

    What it checks:
        In a loss that is written out, as ((prediction - target) ** 2).mean(), no operation makes
        a matrix of all pairs of samples of what has one number for each sample.

    Why it matters:
        Shapes (N, 1) and (N,) broadcast to (N, N): each prediction is compared with each target,
        each weight or advantage is given to each sample. The best answer is then the same for all
        samples. Nothing fails, and the loss falls.

    Fires on:
        Two steps in which an operation of a loss has a result of N x N elements that goes into the
        loss by a sum or mean alone, gradients flow into one of its inputs only, and that one has N
        elements, one for each sample of the batch.

    Stays quiet on:
        Pairs that are meant: two inputs with gradients, as in ranking and contrastive losses; an
        input that unsqueeze(), None, expand() or a transposition made ready; matrices of masks or
        kernels over a result that is a matrix before; results that are summed over one dim and used
        further, as in Cox regression; quantiles and bins, of another number than samples; batches
        of fewer than 4 samples. mse_loss and its like are for TC313.

    Fix:
        Give both one shape: prediction.squeeze(-1), or target.view_as(prediction).

    Source:
        https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    """

    title = "A loss is over all pairs of the samples of a batch"
    likely_cause = "In a loss {observed}: shapes of (N, 1) and (N,) broadcast."
    fix = "Give both one shape: squeeze(-1) the one of (N, 1), or view_as() the other."
    needs = needs_of(LossBroadcast) | Needs(
        calls=frozenset({Families.BACKWARD, Families.MODULE}), kinds=frozenset({"batch", "step"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._sizes: set[int] = set()  # of batches, and of what models were given
        self._calls: Counter[str | None] = Counter()  # an agent is called for each row
        self._before: dict[str, _Look] = {}  # by stream, before their backward pass
        self._looks: list[tuple[CallEvent, _Look]] = []
        self._first: dict[object, Violation] = {}
        self._steps: Counter[object] = Counter()

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            return self._conclude()
        if isinstance(event, BatchEvent):
            self._count(event.leaves)
        elif (found := observed(event, LossBroadcast)) is not None:
            self._before[event.stream] = event, found
        elif isinstance(event, CallEvent):
            if event.api == Families.BACKWARD:
                look = self._before.pop(event.stream, None)
                if look is not None and len(self._looks) < _MOST_MARKS:
                    self._looks.append((event, look))
            elif event.root and event.grad_enabled:
                self._count(event.args)
                self._calls[event.module] += 1
        return []

    def _count(self, values: Mapping[str, Any]) -> None:
        self._sizes.update(t.shape[0] for t in tensors_in(values).values() if t.shape)

    def _conclude(self) -> list[Violation]:
        sizes, self._sizes = self._sizes.union(self._calls.values()), set()
        self._calls.clear()
        looks, self._looks = self._looks, []
        found: dict[object, Violation] = {}
        for call, (mark, broadcasts) in looks:
            self.triggered += 1
            for pairs in _pairs(broadcasts):
                if pairs.size in sizes:
                    place = call.where, pairs.name, len(pairs.given)
                    found.setdefault(place, self._violation(call, mark, pairs))
        self._steps.update(found.keys())
        self._first = {**found, **self._first}
        return [self._first[place] for place in found if self._steps[place] == _ENOUGH]

    def _violation(self, call: CallEvent, mark: Event, pairs: _Pairs) -> Violation:
        other = [pairs.size] if len(pairs.given) > 1 else [pairs.size, 1]
        word = _WORDS.get(pairs.name, f"an operation ({pairs.name})")
        return self.violation(
            mark,
            subject=Subject(api=call.api),
            symptom=Symptom.LOSS_INPUT,
            message=f"{word} in a loss is over all pairs of {pairs.size} samples",
            expected=f"one shape for both, with {pairs.size} elements",
            observed=(
                f"{word} of {[*pairs.given]} and a tensor such as {other} gives {[*pairs.shape]}"
            ),
            evidence=(call,),
        )


def _pairs(broadcasts: LossBroadcast) -> list[_Pairs]:
    """The operation over all pairs of samples, if the pairs are a mistake."""
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
        is_each = bool(sources) and _is_each(sources[0].shape, sides[0])
        if is_each and sides[0] >= _FEWEST and not _is_meant(sources):
            name = _kind(operation.node)
            found.append(_Pairs(name, shape, sources[0].shape, sides[0]))
    return found


def _sources(given: Sequence[Source]) -> Iterator[_Source]:
    """Where an input comes from; up to the first whose sizes are not known."""
    for name, shape in given:
        if shape is None:
            return
        yield _Source(_kind(name), shape)


def _kind(node: str) -> str:
    return node.partition("Backward")[0]


def _is_each(shape: Sequence[int], size: int) -> bool:
    """Whether this has one number for each of so many samples, of which the first dim is."""
    return bool(shape) and shape[0] == size and all(other == 1 for other in shape[1:])


def _is_meant(sources: Sequence[_Source]) -> bool:
    """Whether an input was given its dims to be paired, or is a parameter of a model."""
    for (name, shape), before in zip_longest(sources, sources[1:]):
        if name in _VIEWS:
            return before is None or len(before.shape) < len(shape)
        if name not in _SCALING:
            return name == _LEAF or name in _SPREADING
    return False
