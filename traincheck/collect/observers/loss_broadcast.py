"""Elementwise operations of a loss that gradients flow through, and that broadcast.

Their result is larger than each tensor that it is differentiated by. They are read from the graph,
a few nodes after a scalar, before the first backward passes and some later ones. Only names and
sizes are read.
"""

from __future__ import annotations

from collections import deque
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.loss_graph import IS_TOLD, Input, inputs, kind
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.losses import Broadcast, LossBroadcast, Source

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_CALLS = 4  # of an observed step
# An observation takes up to 120 microseconds; a bug exists from the start.
_SCHEDULE = Schedule(first=8, every=50)
_MOST_NODES = 48
_MOST_FOUND = 4
_MOST_SOURCES = 5  # consecutive nodes after one that broadcasts

# By the part of their names before ``Backward``.
_REDUCTIONS = frozenset({"Mean", "Sum", "Nansum", "LinalgVectorNorm"})
_ELEMENTWISE = frozenset({
    "Abs", "Add", "Atan2", "Clamp", "ClampMax", "ClampMin", "Clone", "Cosh", "Div", "Elu", "Erf",
    "Exp", "Expm1", "Fmax", "Fmin", "Gelu", "Hypot", "LeakyRelu", "Lerp", "Log", "Log10", "Log1P",
    "Log2", "LogSigmoid", "Logaddexp", "MaskedFill", "Maximum", "Minimum", "Mul", "NanToNum", "Neg",
    "Pow", "Reciprocal", "Relu", "Rsqrt", "Rsub", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh",
    "ToCopy", "Where", "Xlogy",
})  # fmt: skip
_FOLLOWED = _REDUCTIONS | _ELEMENTWISE


class LossBroadcastObserver(Observer):
    """Reads the operations of a loss before its backward pass."""

    produces: ClassVar = (LossBroadcast,)
    hook: ClassVar = Hook.BEFORE_BACKWARD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.is_wanted &= IS_TOLD
        self._use = UseSchedule(_CALLS, _SCHEDULE)

    def before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        """A backward pass begins, called with ``args``."""
        if not args or type(args[0]) is not torch.Tensor:
            return
        if not self._use.is_due(self._session.clock.step):
            return
        node = args[0].grad_fn
        if node is not None and args[0].numel() == 1:
            found = _broadcasts(Input(node, args[0].output_nr, ()))
            if found:
                write(em, LossBroadcast(operations=tuple(found)))


def _broadcasts(loss: Input) -> list[Broadcast]:
    """Broadcasting operations among those whose results are reduced directly to ``loss``.

    After a reduction, only results of the same size are followed, and no second reduction: a tensor
    that is reduced over a dim is meant to have that dim.
    """
    found: list[Broadcast] = []
    if kind(loss.node) not in _FOLLOWED:  # the usual case: cross_entropy, mse_loss
        return found
    to_do = deque([(loss, True)])  # whether a reduction may follow
    for _ in range(_MOST_NODES):
        if not to_do or len(found) == _MOST_FOUND:
            break
        here, may_reduce = to_do.popleft()
        given = inputs(here.node)
        known = [each for each in given if each is not None and each.sizes is not None]
        if kind(here.node) not in _REDUCTIONS:
            size = prod(here.sizes or ())
            # One number for all, such as a temperature, makes no pairs
            if 1 < max((prod(each.sizes or ()) for each in known), default=0) < size:
                found.append(_facts(here, given))
            known = [each for each in known if prod(each.sizes or ()) == size]
            may_reduce = size == 1
        for each in known:
            name = kind(each.node)
            if name in _ELEMENTWISE or (name in _REDUCTIONS and may_reduce):
                to_do.append((each, may_reduce))
    return found


def _facts(here: Input, given: list[Input | None]) -> Broadcast:
    return Broadcast(
        node=type(here.node).__name__,
        shape=here.sizes or (),
        inputs=tuple(None if each is None else _sources(each) for each in given),
    )


def _sources(given: Input) -> tuple[Source, ...]:
    """Name and sizes of the node of an input, and of earlier nodes as long as the size stays."""
    found: list[Source] = []
    here: Input | None = given
    while here is not None and len(found) < _MOST_SOURCES:
        found.append((type(here.node).__name__, here.sizes))
        if kind(here.node) is None or here.sizes is None:
            break
        size = prod(here.sizes)
        rest = [each for each in inputs(here.node) if each is not None]
        here = rest[0] if len(rest) == 1 and prod(rest[0].sizes or ()) == size else None
    return tuple(found)
