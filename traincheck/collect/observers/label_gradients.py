"""Gradients of log-probabilities, by position, and the ignored labels of the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch

from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.loss_graph import before_node, kind, signed
from traincheck.collect.tensors.reading import is_a, is_countable, items_of, sequence_of, unseen
from traincheck.schema.observations.losses import LabelPositions, Positions

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

    def __init__(self, fault: Callable[[Any, BaseException], None]) -> None:
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
            try:
                if not self._is_open or type(gradient) is not torch.Tensor:
                    return
                with unseen():
                    gradient = _detach(gradient)
                    if gradient.numel() > _LARGEST or not is_countable(gradient):
                        return
                    trained = gradient.ne(0)
                    trained = trained if dim is None else trained.any(dim)
                    self._seen.append(_Seen(self._root, trained, _sum(gradient)))
            except Exception as error:  # the backward pass must go on whatever we got wrong
                self.fault(reached, error)

        return reached

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
