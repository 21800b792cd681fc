"""Facts about a batch of tokens: padding, positions, labels that are left out.

Never a text: at most one id.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from traincheck.collect.tensors.reading import items_of
from traincheck.schema.torch_api import IGNORED_LABEL

_MAX_ELEMENTS = 1 << 20
_NEARLY_ALL = 0.9
_NO_IDS: Mapping[str, int | None] = MappingProxyType({})


def token_facts(batch: Any, special: Mapping[str, int | None] = _NO_IDS) -> dict[str, Any]:
    """Facts about ``input_ids``, ``attention_mask``, ``position_ids`` and ``labels`` of a batch.

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
    if not _is_padding(int(left_out), ids[~attended], special):
        return None
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).masked_fill(~attended, -1)
    last = places.max(1).values
    ends = ids.gather(1, last.clamp(min=0)[:, None])[:, 0]
    is_end = (ends == left_out) & (last >= 0)
    return int(left_out) if 2 * int(is_end.sum()) > len(ids) else None


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


def _is_padding(token: int, left_out: torch.Tensor, special: Mapping[str, int | None]) -> bool:
    """Whether the token that texts end with is also the padding token.

    The excluded positions of the mask show this. If it excludes none, the configuration of the
    model does: an unmasked token at the end of rows may be padding.
    """
    if left_out.numel():
        return bool((left_out == token).any())
    return token == special.get("pad_token_id") == special.get("eos_token_id")
