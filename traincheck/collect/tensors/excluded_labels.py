"""Labels of a loss at places that an attention mask of the model excludes.

A mask counts as one of padding if the labels are known to be made of the tokens beside it. Whether
they are stays a tensor on the device of the program until the step ends, so nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from traincheck.collect.tensors.loss_graph import Key, inputs, key_of, node_of
from traincheck.collect.tensors.operation_looks import Call, Numbers, is_readable
from traincheck.collect.tensors.reading import FLOATS, PLAIN_TYPES, detached
from traincheck.schema.torch_api import IGNORED_LABEL

_MASK = "mask"  # in the name of an argument
_TARGETS = ("label", "target")
_FUNCTIONS = frozenset({"cross_entropy", "nll_loss"})
_SHIFTS = (1, 0)  # of labels against tokens
_PLACES = 2048  # of a mask that are read, in whole rows
_LEAST_WIDTH, _MOST_WIDTH = 4, 1 << 15
_LEAST_CHANGES = 4  # of a label from place to place: fewer agree by chance
_MOST_NODES = 128  # that are visited behind the root of a backward pass
_MOST_LOSSES = 64  # of a step
_MOST_MASKS = 16

# Look, function, line, and name of the argument
LineKey: TypeAlias = tuple[str, str, str, str]


class Mask(NamedTuple):
    """The first rows of a mask and of the tokens that it is for.

    Attributes:
        ids, mask: copies of these rows.
        rows: of the whole mask.
        address: of the tokens that the program has.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    rows: int
    address: int


def masks_among(given: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Mask]]:
    """The masks that a model gets together with tokens of the same shape, by name."""
    for name, mask in given:
        if (
            _MASK not in name.lower()
            or mask.dim() != 2  # noqa: PLR2004
            or not _LEAST_WIDTH <= mask.shape[1] <= _MOST_WIDTH
            or not len(mask)
            or not is_readable(mask)
        ):
            continue
        for other, ids in given:
            if (
                ids.shape == mask.shape
                and ids.device == mask.device
                and not any(word in other.lower() for word in (_MASK, *_TARGETS))
                and _are_whole_numbers(ids)
            ):
                few = max(_PLACES // mask.shape[1], 1)
                rows = detached(ids)[:few].clone(), detached(mask)[:few] != 0
                yield name, Mask(*rows, len(mask), ids.data_ptr())
                break


def excluded_labels(call: Call, masks: Mapping[str, Mask]) -> Iterator[tuple[str, Numbers]]:
    """For each mask that a model got: the labels of a loss at places that it excludes.

    Only losses that give each label the same weight are read.

    Yields:
        Name of the mask, and its numbers. ``made``: 1 where the labels at the other places are the
        tokens of an input, at their place or one before it. ``one_value``: 1 where excluded places
        have one token and one label. ``masked``: share of the places that are excluded, as the
        place before them is. ``counted``: share of the labels of the loss that are there.
    """
    target, result = call.given(1, "target"), call.result
    if (
        call.name not in _FUNCTIONS
        or call.given(2, "weight") is not None
        or not _are_whole_numbers(target)
        or type(result) not in PLAIN_TYPES
        or result.numel() != 1
        or target.numel() <= 1
        or not result.requires_grad
    ):
        return
    ignored = call.given(4, "ignore_index")
    ignored = ignored if isinstance(ignored, int) else IGNORED_LABEL
    for name, one in masks.items():
        few, width = one.mask.shape
        if (
            target.numel() in (one.rows * width, one.rows * (width - 1))
            and target.device == one.ids.device
            and target.data_ptr() != one.address
        ):
            labels = detached(target).reshape(one.rows, -1)[:few]
            yield name, _numbers(labels, one.ids, ~one.mask, ignored)


def _are_whole_numbers(value: object) -> bool:
    return (
        is_readable(value)
        and isinstance(value, torch.Tensor)
        and value.dtype not in FLOATS
        and value.dtype is not torch.bool
    )


def _numbers(
    labels: torch.Tensor, ids: torch.Tensor, excluded: torch.Tensor, ignored: int
) -> Numbers:
    # The first place after a text may be its end, which is learned
    padded = torch.zeros_like(excluded)
    padded[:, 1:] = excluded[:, 1:] & excluded[:, :-1]
    made = torch.zeros((), dtype=torch.bool, device=ids.device)
    one_value, counted = made, made.float()
    for shift in _SHIFTS:
        width = min(labels.shape[1], ids.shape[1] - shift)
        mine, places = labels[:, :width], slice(shift, shift + width)
        theirs, there, counts = ids[:, places], padded[:, places], mine != ignored
        of_text = counts & ~excluded[:, places]
        changes = (of_text[:, 1:] & (mine[:, 1:] != mine[:, :-1])).sum() >= _LEAST_CHANGES
        fits = ((mine == theirs) | ~of_text).all() & changes & ~made
        counts_there = counts & there
        share = counts_there.sum() / counts.sum().clamp(min=1)
        one_value = one_value | (fits & _is_one(theirs, there) & _is_one(mine, counts_there))
        counted = torch.where(fits, share, counted)
        made = made | fits
    return {
        "made": made.float(),
        "one_value": one_value.float(),
        "masked": padded.float().mean(),
        "counted": counted,
    }


def _is_one(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Whether all values at these places are equal."""
    most = torch.iinfo(values.dtype).max
    return ((values == values.masked_fill(~places, most).amin()) | ~places).all()


class TrainedLosses:
    """Numbers of losses, until a backward pass shows that the program trains on them."""

    def __init__(self) -> None:
        self._masks: dict[str, Mask] = {}
        self._waiting: dict[Key, list[tuple[LineKey, Numbers]]] = {}

    def clear(self) -> None:
        """Forget them: the step has ended."""
        self._masks.clear()
        self._waiting.clear()

    def given(self, inputs: Sequence[tuple[str, torch.Tensor]]) -> None:
        """A model is called. Its masks take the place of earlier ones of the same name."""
        for name, mask in masks_among(inputs):
            if name in self._masks or len(self._masks) < _MOST_MASKS:
                self._masks[name] = mask

    def enter(self, look: str, call: Call, where: str) -> None:
        """A loss was called."""
        if len(self._waiting) >= _MOST_LOSSES:
            return
        found = [
            ((look, call.name, where, name), n) for name, n in excluded_labels(call, self._masks)
        ]
        node = node_of(call.result) if found else None
        if node is not None:
            self._waiting[key_of(node)] = found

    def behind(self, root: torch.Tensor) -> Iterator[tuple[LineKey, Numbers]]:
        """The losses near the root of a backward pass."""
        node = node_of(root) if self._waiting and type(root) in PLAIN_TYPES else None
        queue = [] if node is None else [node]
        visited: set[Key] = set()
        for here in queue:  # which grows meanwhile
            key = key_of(here)
            if key in visited:
                continue
            visited.add(key)
            if len(visited) > _MOST_NODES or not self._waiting:
                return
            yield from self._waiting.pop(key, ())
            queue += [one.node for one in inputs(here) if one is not None]
