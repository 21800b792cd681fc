"""The terms of a loss, in a few steps: their weights, constants, and sums that are not used.

In a step that is armed, results of loss functions are noted, and additions of scalars are seen
(`TensorMethods`). Nodes are known by their numbers, so that no graph is kept alive. A hook of a
node shows that a backward pass reached it, and its gradient, which is the weight of the term.
Gradients of log-probabilities are noted by position, with the ignored labels of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from sys import _getframe
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from traincheck.collect.moments.moment import Args, Named
from traincheck.collect.moments.tensor_methods import TensorMethods
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.loss_ledger import Constant, LossLedger
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.loss_graph import (
    IS_TOLD,
    Input,
    ScalarGraph,
    before_node,
    key_of,
    kind,
    node_of,
    signed,
)
from traincheck.collect.tensors.reading import (
    is_a,
    is_countable,
    items_of,
    modes,
    sequence_of,
    unseen,
)
from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import Fault, attempt, observe
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.losses import LabelPositions, LossSums, LossTerms, Positions

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MOST_NODES = 256
_MOST_FOUND = 4  # of a root
_MOST_MASKS = 8
_LARGEST_LABELS = 1 << 20
_LARGEST = 1 << 27  # elements of log-probabilities
_INTEGERS = frozenset({torch.int64, torch.int32})
_LEAST_DIMS = 2
_MOST_DEPTH = 3
_MOST_LEAVES = 32
# Not recorded as calls of the program.
_base = torch._C.TensorBase
_detach, _sum = _base.detach, _base.sum

# Masks that are 1 where a label counts. Others, such as special_tokens_mask, are the reverse.
_COUNTING = frozenset({
    "action_mask", "attention_mask", "completion_mask", "label_mask", "labels_mask", "loss_mask",
    "response_mask", "target_mask",
})  # fmt: skip
_DIFFERENCES = frozenset({"Sub", "Rsub"})
_OF_LABELS = frozenset({"Gather", "Index", "NllLoss", "NllLoss2D"})
_MOST_BELOW = 32

# By node: whether its output has a dim of classes.
_LOG_PROBABILITIES = {"LogSoftmax": True, "Logsumexp": False}


class _Seen(NamedTuple):
    """Positions with a gradient, and the sum of the gradients."""

    root: int
    trained: torch.Tensor
    total: torch.Tensor


class LabelGradients:
    """Follows the labels of batches, and hooks on nodes of log-probabilities for one step.

    fault: gets what failed, and the error.
    """

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._masks: deque[torch.Tensor] = deque(maxlen=_MOST_MASKS)  # where labels are ignored
        self._seen: list[_Seen] = []
        self._hooked: set[int] = set()  # numbers of nodes
        self._root = -1
        self._is_open = self._is_compared = False

    def batch(self, batch: Any) -> None:
        """A batch was fetched."""
        for name, leaf in _leaves("", batch, _MOST_DEPTH):
            is_mask = name in _COUNTING
            if (
                type(leaf) is torch.Tensor
                and (is_mask or leaf.dtype in _INTEGERS)
                and leaf.dim() >= _LEAST_DIMS
                and leaf.numel() <= _LARGEST_LABELS
                and (leaf.dtype is torch.bool or is_countable(leaf))
            ):
                self._masks.append(leaf == 0 if is_mask else leaf < 0)

    def begin(self, loss: Any) -> None:
        """A backward pass begins at a node."""
        self._root += 1
        self._is_open = True
        known, to_do, found = {loss}, deque([loss]), 0
        while to_do and found < _MOST_FOUND:
            node = to_do.popleft()
            name = kind(node) or ""
            self._is_compared |= name in _DIFFERENCES and _is_of_labels(node)
            if name in _LOG_PROBABILITIES:
                found += 1
                number = node._sequence_nr()
                if number not in self._hooked:
                    self._hooked.add(number)
                    dim = signed(node._saved_dim) if _LOG_PROBABILITIES[name] else None
                    before_node(node, self._hook(dim))
                continue
            for following, _ in node.next_functions:
                if following is not None and following not in known and len(known) < _MOST_NODES:
                    known.add(following)
                    to_do.append(following)

    def _hook(self, dim: int | None) -> Callable[[Any], None]:
        def reached(gradient: Any) -> None:
            if not self._is_open or type(gradient) is not torch.Tensor:
                return
            gradient = _detach(gradient)
            if gradient.numel() > _LARGEST or not is_countable(gradient):
                return
            trained = gradient.ne(0)
            trained = trained if dim is None else trained.any(dim)
            self._seen.append(_Seen(self._root, trained, _sum(gradient)))

        return partial(attempt, self.fault, reached)

    def end(self) -> LabelPositions | None:
        """The step is over. Waits for devices."""
        seen, self._seen = self._seen, []
        self._hooked, self._root, self._is_open = set(), -1, False
        masks = [host(mask) for mask in self._masks] if seen else []
        found = tuple(_positions(each, masks) for each in seen)
        compared, self._is_compared = self._is_compared, False
        return LabelPositions(found, compared) if found else None

    def clear(self) -> None:
        """Forget all batches."""
        self._masks.clear()


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Tensors in a batch, with their keys."""
    if is_a(value, torch.Tensor):
        yield name, value
    elif depth:
        for each in sequence_of(value, _MOST_LEAVES) or ():
            yield from _leaves("", each, depth - 1)
        for key, each in items_of(value, _MOST_LEAVES) or ():
            yield from _leaves(str(key), each, depth - 1)


def _is_of_labels(difference: Any) -> bool:
    """Whether a node subtracts a constant from log-probabilities of labels, or the reverse."""
    if not any(source is None for source, _ in difference.next_functions):
        return False
    known, to_do = {difference}, deque([difference])
    while to_do:
        for following, _ in to_do.popleft().next_functions:
            name = None if following is None else kind(following)
            if name in _OF_LABELS:
                return True
            if following not in known and name and name not in _LOG_PROBABILITIES:
                known.add(following)
                if len(known) < _MOST_BELOW:
                    to_do.append(following)
    return False


def _positions(seen: _Seen, masks: list[torch.Tensor]) -> Positions:
    """The numbers of one log_softmax, with the labels that fit it best."""
    trained = host(seen.trained)
    plain = Positions(
        seen.root, tuple(trained.shape), int(trained.sum()), float(host(seen.total).item())
    )
    best, most = plain, -1
    for counted, ignored in _alignments(trained, masks):
        labels = int((~ignored).sum())
        if labels in (0, ignored.numel()):
            continue
        on_labels, on_ignored = int((counted & ~ignored).sum()), int((counted & ignored).sum())
        agree = on_labels + int((~counted & ignored).sum())
        size = ignored.numel()  # an alignment in which no ignored label counts is the right one
        agreement = 2 * size if on_ignored == 0 else max(agree, size - agree)
        if agreement > most:
            most = agreement
            best = Positions(
                plain.root, plain.shape, plain.trained, plain.total, labels, on_labels, on_ignored,
                ignored.numel() - labels,
            )  # fmt: skip
    return best


def _alignments(
    trained: torch.Tensor, masks: list[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Positions, and whether their labels are ignored: as they are, and for the next token."""
    for mask in masks:
        rows, length = prod(mask.shape[:-1]), mask.shape[-1]
        ignored = mask.reshape(rows, length)
        if trained.numel() == ignored.numel():
            whole = trained.reshape(rows, length)
            yield whole, ignored
            yield whole[:, :-1], ignored[:, 1:]
        elif trained.numel() == rows * (length - 1):
            yield trained.reshape(rows, length - 1), ignored[:, 1:]


_SCHEDULE = Schedule(first=6, every=200)
_MOST_ROOTS = 4  # of a step
_FREE, _ARMED = "free", "armed"

_F = torch.nn.functional
LOSSES = tuple(
    name
    for name in vars(_F)
    if name.endswith(("_loss", "cross_entropy", "_with_logits", "kl_div"))
    and not name.startswith("_")
    and callable(getattr(_F, name))
)
_ADDING = {
    "__add__": 1.0, "__iadd__": 1.0, "__isub__": -1.0, "__radd__": 1.0, "__rsub__": -1.0,
    "__sub__": -1.0, "add": 1.0, "sub": -1.0,
}  # fmt: skip
_SCALING = (
    "__mul__", "__neg__", "__rmul__", "__truediv__", "detach", "div", "mean", "mul", "sum",
)  # fmt: skip
_IS_KNOWN = IS_TOLD and hasattr(torch._C, "_current_graph_task_id")


class LossTermObserver(Observer):
    """Observes results of loss functions, sums of scalars, and backward passes."""

    produces: ClassVar = (LossTerms, LossSums, LabelPositions)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.is_wanted &= _IS_KNOWN
        self._use = UseSchedule(1, _SCHEDULE)
        self._methods = TensorMethods((*_ADDING, *_SCALING), self._seen, session.fault)
        self._ledger = LossLedger(session.fault)
        self._labels = LabelGradients(session.fault)
        self._thread: int | None = None  # that trains; None while not armed
        # One of two keys, which one thread takes at a time. Several threads may end steps.
        self._turn = {_FREE: True}

    def install(self, patcher: Patcher) -> None:
        """Listen to loss functions and backward passes, and arm at the ends of steps."""
        hooks = self._session.hooks
        for name in LOSSES:
            hooks.around[f"{_F.__name__}.{name}"] = self._loss(name)
        for name in (*_ADDING, *_SCALING):  # where an instrument replaces them, too
            hooks.around[f"torch.Tensor.{name}"] = partial(self._methods.around, name)
        self.listen(hooks.before_backward, self._before_backward)
        self.listen(hooks.after_batch, self._fetched)
        self.listen(hooks.at_step_end, self._end)
        self.listen(hooks.at_close, self._write)

    def remove(self) -> None:
        """Stop observing."""
        self._turn.clear()
        self._thread = None
        self._methods.remove()
        self._ledger.end(None)

    # -- in the step

    def _loss(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def loss(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self._thread is not None:
                    self._guarded(self._noted, name, result)
                return result

            return hidden(loss)

        return make

    def _before_backward(self, args: Args, kwargs: Named) -> None:
        if self._thread is not None:
            self._guarded(self._begins, args[0] if args else kwargs.get("tensors"))

    def _fetched(self, _iterator: Any, batch: Any) -> None:
        """A batch was fetched. The instrument guards this call."""
        if self._thread == get_ident() and not modes():
            self._labels.batch(batch)

    def _seen(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """A method of tensors was called. Most results are no scalars and of no loss function."""
        if self._thread != get_ident():
            return
        with unseen():
            if result.dim() and not self._ledger.constants:
                return
        self._guarded(self._calculated, name, args, result)

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        session = self._session
        if self._thread != get_ident() or is_traced() or state._is_compiling_flag or modes():
            return
        observe(session, action, *args)

    def _noted(self, name: str, result: Any) -> None:
        if type(result) is not torch.Tensor:
            return
        where = outside(_getframe(1)) or ""
        if result.grad_fn is not None:
            self._ledger.functions[key_of(result.grad_fn)] = name, where
        elif torch.is_grad_enabled() or result.dim() == 0:
            self._ledger.note_constant(result, (Constant(name, where, 1.0),))
        if result.dim() == 0:
            self._ledger.note_value(name, where, result)

    def _calculated(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        sign = _ADDING.get(name)
        if node_of(result) is None:
            self._ledger.derive(name, sign, args, result)
        elif sign is not None and result.dim() == 0:
            self._ledger.add(args[0], args[1:2], sign, result, outside(_getframe(1)) or "")

    def _begins(self, given: Any) -> None:
        tensors = sequence_of(given) or (given,)
        self._ledger.open = None
        for tensor in tensors:
            if type(tensor) is not torch.Tensor or tensor.grad_fn is None or tensor.numel() != 1:
                continue
            if len(self._ledger.roots) < _MOST_ROOTS:
                root = Input(tensor.grad_fn, tensor.output_nr, ())
                graph = ScalarGraph(root, self._ledger.functions)
                self._labels.begin(tensor.grad_fn)
                if graph.is_whole:
                    self._ledger.begin(graph, tensor.grad_fn)

    # -- at its end

    def _end(self, em: Emitter) -> None:
        """A recorded step ends: write what was seen, and arm the next step."""
        self._write(em)
        step = self._session.clock.step
        if step is None or self._session.is_worker:
            return
        if self._session.sampling.foresees(step + 1) and self._use.is_due(step):
            if self._turn.pop(_FREE, None) is not None:
                self._methods.install()
                self._thread = get_ident()
                self._turn[_ARMED] = True
        else:
            self._labels.clear()

    def _write(self, em: Emitter) -> None:
        sums = self._ledger.sums()
        if sums is not None:
            write(em, sums)
        if self._turn.pop(_ARMED, None) is None:
            return
        self._thread = None
        self._methods.remove()
        try:
            for terms in self._ledger.terms():
                write(em, terms)
            positions = self._labels.end()
            if positions is not None:
                write(em, positions)
        finally:
            self._ledger.end(self._session.clock.step)
            self._turn[_FREE] = True
