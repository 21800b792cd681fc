"""Tokens of a batch: labels that are the next ones, masks and padding, and what is left out.

Reads whole numbers on the CPU and how logits were sliced. Draws no random number.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Any

import torch

from traincheck.collect.stats.argument_stats import Taken
from traincheck.collect.tensors.devices import is_remote
from traincheck.collect.tensors.loss_graph import signed
from traincheck.collect.tensors.reading import detached, items_of
from traincheck.schema.torch_api import IGNORED_LABEL

NOT_AT_ALL, ONCE, TWICE = 0, 1, 2  # positions by which labels are ahead of the tokens
_LARGEST = 1 << 16  # elements of a tensor that is compared
_COLUMNS = 4
_MOST_TENSORS = 4  # of one shape in one batch
_MOST_LABELS = 4  # remembered in one step
_CHANGES = 8  # of tokens within rows; with fewer, shifts cannot be recognized
_NDIM = 2
_HIDDEN = -1e4  # masks add less than this to the scores that they exclude
_NODES = 12  # of a graph, from the logits back
_WHOLE = frozenset({torch.int32, torch.int64})
_PLAIN = frozenset({torch.Tensor})
# They keep the order of positions. ``SliceBackward0`` does not.
_KEEPERS = frozenset(
    f"{name}Backward0"
    for name in (
        "View", "UnsafeView", "ReshapeAlias", "Clone", "Transpose", "Permute", "T", "ToCopy",
        "LogSoftmax", "Alias", "Div", "Mul", "Unsqueeze", "Squeeze", "Contiguous",
    )
)  # fmt: skip
_SLICE = "SliceBackward0"


class NextTokenMatcher:
    """The tokens and labels of one step."""

    def __init__(self) -> None:
        self._labels: deque[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = deque(
            maxlen=_MOST_LABELS
        )
        self._tokens: deque[torch.Tensor] = deque(maxlen=_MOST_LABELS)
        self._fed: deque[torch.Tensor] = deque(maxlen=_MOST_LABELS)
        self._cut: int | None = None

    def clear(self) -> None:
        """A step begins."""
        self._labels.clear()
        self._tokens.clear()
        self._fed.clear()
        self._cut = None

    def scan(self, values: Iterable[Any]) -> None:
        """Remember tokens, and labels among them: of a batch, or the arguments of a model."""
        by_shape: dict[torch.Size, list[torch.Tensor]] = {}
        for value in values:
            if type(value) in _PLAIN and _may_be_tokens(value):
                by_shape.setdefault(value.shape, []).append(value)
        for alike in by_shape.values():
            found = [
                labels
                for tokens, labels in permutations(alike[:_MOST_TENSORS], 2)
                if labels is not tokens and _is_next(tokens, labels)
            ]
            self._labels.extend((weakref.ref(labels), labels.clone()) for labels in found)
            self._tokens.extend(
                tensor.clone()
                for tensor in alike[:_MOST_TENSORS]
                if not any(tensor is labels for labels in found)
            )

    def note_embedded(self, ids: Any) -> None:
        """Remember tokens that a model embeds."""
        if type(ids) in _PLAIN and _may_be_tokens(ids):
            self._fed.append(ids.clone())

    def is_next(self, value: Any) -> bool:
        """Whether these labels were remembered."""
        return any(ref() is value for ref, _ in self._labels)

    def mask_hides_all_tokens(self, mask: torch.Tensor, *, hides: bool) -> bool | None:
        """Whether a mask over keys lets attention see the padding of tokens, and nothing else.

        None if it belongs to no known tokens.

        Args:
            mask: of shape (rows, ..., positions), with only ones between; additive or boolean.
            hides: whether True in a boolean mask excludes a position.
        """
        if mask.dim() < _NDIM or mask.numel() != len(mask) * mask.shape[-1]:
            return None
        shape = len(mask), mask.shape[-1]
        known = (*self._fed, *self._tokens)
        texts = [way for t in known for way in (t, t.t()) if tuple(way.shape) == shape]
        if not texts:
            return None
        flat = detached(mask).reshape(shape)
        hidden = (flat if hides else ~flat) if flat.dtype is torch.bool else flat < _HIDDEN
        return any(_is_padding(text, ~hidden) for text in texts)

    def of_argument(self, value: torch.Tensor) -> Taken:
        """The shift of a loss's target; its logits only show how they were sliced.

        The logits come first. No number if the shift is not known.
        """
        if not self._tokens:
            return {}
        if value.is_floating_point():
            self._cut = _cut(value) if self._labels else None
            return {}
        if value.dtype is not torch.int64:
            return {}
        found = self._moved_on(value) or self._next(value)
        # On a device the values are not known yet
        is_known = value.is_cpu and "shifted" in found
        if (
            is_known
            and int(found["shifted"]) == NOT_AT_ALL
            and any(
                tokens.numel() == value.numel() and _agree(tokens, value.reshape(tokens.shape))
                for tokens in self._fed
            )
        ):  # the tokens that a model embedded, position by position
            found["fed"] = torch.tensor(1, device=value.device)
        return found

    def _moved_on(self, value: torch.Tensor) -> Taken:
        """Whether a target is next-token labels that were shifted once more."""
        cut, self._cut = self._cut, None
        if cut is not None:
            for _, labels in self._labels:
                moved = _moved(labels, cut)
                if moved is None or moved.numel() != value.numel():
                    continue
                flat = moved.reshape(-1).to(value.device, non_blocking=is_remote(value))
                same = (value.reshape(-1) == flat).all()
                if not value.is_cpu or same:
                    return {"shifted": same * TWICE}
        return {}

    def _next(self, value: torch.Tensor) -> Taken:
        """Whether a target is the next tokens of known tokens, or these tokens themselves.

        Texts are rows, or columns for models that take the sequence first.
        """
        found: Taken = {}
        for tokens in self._tokens if value.is_cpu else ():
            rows, columns = tokens.shape
            for width in (columns, columns - 1):
                if value.numel() != rows * width:
                    continue
                labels = value.reshape(rows, width)
                if _is_next(tokens, labels):
                    return {"shifted": torch.tensor(ONCE, device=value.device)}
                if width == columns and _agree(tokens, labels) and _do_tell(labels):
                    found = {"shifted": torch.tensor(NOT_AT_ALL, device=value.device)}
            if value.numel() == tokens.numel() and _is_next(
                tokens.t(), value.reshape(rows, columns).t()
            ):
                one = torch.tensor(ONCE, device=value.device)
                return {"shifted": one, "columns": one}
        return found


def _may_be_tokens(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.dtype in _WHOLE
        and tensor.layout is torch.strided
        and tensor.dim() == _NDIM
        and tensor.shape[1] >= _COLUMNS
        and 0 < tensor.numel() <= _LARGEST
    )


def _is_padding(text: torch.Tensor, shown: torch.Tensor) -> bool:
    """Whether the admitted positions are one token at the same end of all rows.

    The number must differ between rows. Otherwise the token may be admitted on purpose, such as one
    that begins each row.
    """
    tokens = text[shown]
    if not tokens.numel() or not torch.equal(shown, text == tokens[0]):
        return False
    counts, turns = shown.sum(1), shown.to(torch.int8).diff(dim=1)
    if counts.min() == counts.max() or bool((turns < 0).any() and (turns > 0).any()):
        return False
    others = text[~shown]
    return int((others != others[0]).sum()) >= _CHANGES


def _is_next(tokens: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether each label is the next token, and tokens change enough to recognize this."""
    following = tokens[:, 1:]
    return _agree(following, labels[:, : following.shape[1]]) and _do_tell(labels)


def _agree(tokens: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether each given label equals the token at its position."""
    return not bool(((labels != tokens) & (labels != IGNORED_LABEL)).any())


def _do_tell(labels: torch.Tensor) -> bool:
    """Whether labels change enough within rows to distinguish a shift from none."""
    given, last = labels[:, :-1], labels[:, 1:]
    counted = given != IGNORED_LABEL
    return int((counted & (last != IGNORED_LABEL) & (given != last)).sum()) >= _CHANGES


def _moved(labels: torch.Tensor, cut: int) -> torch.Tensor | None:
    """The labels shifted by one more position, as sliced logits are scored."""
    if cut == labels.shape[1]:
        return labels[:, 1:]
    if cut == 0:  # all logits: the last one of each row has no label
        return torch.cat([labels[:, 1:], labels.new_full((len(labels), 1), IGNORED_LABEL)], dim=1)
    return None


def _cut(logits: torch.Tensor) -> int | None:
    """Length of rows whose last position was sliced off; 0: not sliced; None: sliced otherwise."""
    node, found = logits.grad_fn, 0
    if node is None:
        return None
    for _ in range(_NODES):
        if node is None:
            break
        name = node.name()
        if name == _SLICE:
            length = _length(node)
            if length is None or (length and found):
                return None
            found = found or length
        elif name not in _KEEPERS:
            break
        following: Sequence[Any] = node.next_functions
        node = following[0][0] if following else None
    return found


def _length(node: Any) -> int | None:
    """`_cut` for a slice."""
    sizes: Sequence[int] = node._saved_self_sym_sizes
    dim, end = signed(node._saved_dim) % len(sizes), signed(node._saved_end)
    size = sizes[dim]
    if node._saved_start != 0 or node._saved_step != 1:
        return None
    if end >= size:
        return 0
    return size if dim == 1 and end in (-1, size - 1) else None


_MAX_ELEMENTS = 1 << 20
_NEARLY_ALL = 0.9
_NO_IDS: Mapping[str, int | None] = MappingProxyType({})


def token_facts(batch: Any, special: Mapping[str, int | None] = _NO_IDS) -> dict[str, Any]:
    """Facts about ``input_ids``, ``attention_mask``, ``position_ids`` and ``labels`` of a batch.

    Never a text: at most one id.

    Returns these facts, if known:

    - padding: share of positions that the mask excludes.
    - left_padded: whether rows begin with padding.
    - token_labels: labels are tokens of the text, not tags or classes.
    - resets: number of rows in which positions decrease.
    - lost_end: the id with which rows end. It is also the padding id, and the only attended id that
    token labels leave out.
    - padding_label: the label of nearly all padding, if a loss would count it and labels are
    tokens.
    - unknown: share of tokens that are the unknown token.
    - attended_padding: number of rows that begin or end with two or more padding ids that the mask
    admits.

    The last two need ``special``, the ids in the configurations of models.
    """
    if (items := items_of(batch)) is None:
        return {}
    batch = {key: value for key, value in items if type(key) is str}
    out: dict[str, Any] = {}
    mask = _matrix(batch.get("attention_mask"))
    if mask is not None:
        left_out = mask == 0
        out["padding"] = float(left_out.float().mean())
        if out["padding"]:
            out["left_padded"] = bool(left_out[:, 0].any())
    positions = _matrix(batch.get("position_ids"))
    if positions is not None and positions.shape[1] > 1:
        out["resets"] = int((positions[:, 1:] < positions[:, :-1]).any(1).sum())
    ids, labels = _matrix(batch.get("input_ids")), _matrix(batch.get("labels"))
    if ids is not None and labels is not None and ids.shape == labels.shape:
        if _are_tokens(labels, ids):
            out["token_labels"] = True
        lost = _lost_end(ids, labels, mask, special)
        if lost is not None:
            out["lost_end"] = lost
        if mask is not None and mask.shape == labels.shape:
            counted = _padding_label(ids, labels, left_out)
            if counted is not None:
                out["padding_label"] = counted
    if ids is not None:
        out.update(_special(ids, mask, special))
    return out


def _special(
    ids: torch.Tensor, mask: torch.Tensor | None, special: Mapping[str, int | None]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    padding, unknown = special.get("pad_token_id"), special.get("unk_token_id")
    is_padding = ids == padding if padding is not None else torch.zeros_like(ids, dtype=torch.bool)
    if unknown is not None and unknown != padding:
        tokens = int((~is_padding).sum())
        out["unknown"] = int((ids == unknown).sum()) / tokens if tokens else 0.0
    is_its_own = padding is not None and padding not in (special.get("eos_token_id"), unknown)
    if mask is not None and is_its_own and mask.shape == ids.shape and ids.shape[1] > 1:
        attended = is_padding & (mask != 0)
        at_an_end = attended[:, :2].all(1) | attended[:, -2:].all(1)
        out["attended_padding"] = int(at_an_end.sum())
    return out


def _matrix(value: Any) -> torch.Tensor | None:
    """A matrix of integers that is cheap to read."""
    if (
        isinstance(value, torch.Tensor)
        and value.is_cpu
        and value.dim() == 2  # noqa: PLR2004  # rows of tokens
        and 0 < value.numel() <= _MAX_ELEMENTS
        and not value.is_floating_point()
        and not value.is_complex()
    ):
        return value.detach()
    return None


def _lost_end(
    ids: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor | None,
    special: Mapping[str, int | None],
) -> int | None:
    attended = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    left_out = torch.unique(ids[attended & (labels == IGNORED_LABEL)])
    if len(left_out) != 1 or (labels == left_out).any() or not _are_tokens(labels, ids):
        return None
    # Whether the token that texts end with is the padding token, too: by the excluded positions of
    # the mask. If it excludes none, by the configuration of the model: an unmasked token at the end
    # of rows may be padding.
    token, excluded = int(left_out), ids[~attended]
    if excluded.numel():
        is_padding = bool((excluded == token).any())
    else:
        is_padding = token == special.get("pad_token_id") == special.get("eos_token_id")
    if not is_padding:
        return None
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).masked_fill(~attended, -1)
    last = places.max(1).values
    ends = ids.gather(1, last.clamp(min=0)[:, None])[:, 0]
    is_end = (ends == left_out) & (last >= 0)
    return token if 2 * int(is_end.sum()) > len(ids) else None


def _padding_label(ids: torch.Tensor, labels: torch.Tensor, padding: torch.Tensor) -> int | None:
    found = labels[padding]
    if not found.numel() or int(found[0]) == IGNORED_LABEL:
        return None
    is_one = float((found == found[0]).float().mean()) > _NEARLY_ALL
    kept = labels.masked_fill(padding, IGNORED_LABEL)
    return int(found[0]) if is_one and _are_tokens(kept, ids.masked_fill(padding, -1)) else None


def _are_tokens(labels: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether labels are tokens of the text, at their position or one before it; tags are not."""
    pairs = ((labels, ids), (labels[:, :-1], ids[:, 1:]))
    told = int((labels != IGNORED_LABEL).sum())
    return any(2 * int((mine == theirs).sum()) > told for mine, theirs in pairs)
