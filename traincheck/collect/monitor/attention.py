"""Attention by head, without the matrix of probabilities.

With scores s, probabilities p and values v, attention returns the sums of p * v. Given the keys as
values it returns those of p * k, and the query times these, scaled, is the mean score. The entropy
is H = logsumexp(s) - mean(s): one more call of flash attention, in memory that grows with the
number of positions and not with its square. The largest score needs all scores, a few rows at a
time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from traincheck.schema.metrics.sums import Combine

_flash_on_cpu: Callable[..., Any] | None = getattr(
    torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None
)
_FLASH_TYPES = (torch.float32, torch.float64)
_MOST_SCORES = 1 << 20  # at once, where they must be computed


@dataclass(frozen=True, slots=True)
class Attention:
    """Arguments of one call of ``scaled_dot_product_attention``, detached.

    Attributes:
        query: (batch, heads, positions, features).
        key, value: the same, with other positions; as many heads as the query has.
        mask: (batch, heads, positions, positions): bool, true where a position is attended to, or
            numbers that are added to the scores; None for none.
        is_causal: whether later positions are left out.
        scale: factor of the scores.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    scale: float

    @classmethod
    def of(
        cls,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Attention | None:
        """The arguments as that function has them; None where there are no elements."""
        if query.numel() == 0 or key.numel() == 0:
            return None
        query, key, value = query.detach(), key.detach(), value.detach()
        if enable_gqa and key.size(-3) != query.size(-3):
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        shapes = (each.shape[:-2] for each in (query, key, value))
        ahead = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        mask = None
        if attn_mask is not None:
            shape = (*ahead, query.size(-2), key.size(-2))
            mask = by_heads(attn_mask.detach().expand(shape))
        q, k, v = (by_heads(each.expand(*ahead, -1, -1)) for each in (query, key, value))
        return cls(q, k, v, mask, is_causal, scale)

    @property
    def heads(self) -> int:
        """How many heads the query has."""
        return self.query.size(-3)

    def entropy(self) -> torch.Tensor:
        """Entropy of the attention of each row, in nats: (batch, heads, rows).

        NaN where a row attends to nothing.
        """
        query, key = _wide(self.query), _wide(self.key)
        if self.mask is None and _flash_on_cpu is not None and query.is_cpu:
            mean_key, total = _flash_on_cpu(query, key, key, 0.0, self.is_causal, scale=self.scale)
            mean = self.scale * (query * mean_key).sum(-1)
            return _clean(total.to(mean.dtype).reshape(mean.shape) - mean)
        return torch.cat([_row_entropy(scores) for scores in self._scores()], -1)

    def max_logit(self) -> torch.Tensor:
        """The largest score of each row: (batch, heads, rows); NaN where there is none."""
        return torch.cat([_clean(scores.amax(-1)) for scores in self._scores()], -1)

    def _scores(self) -> Iterator[torch.Tensor]:
        """Scores of some rows after the others: (batch, heads, rows, positions)."""
        query, key, mask = _wide(self.query), _wide(self.key), self.mask
        rows, positions = query.size(-2), key.size(-2)
        batch = query.shape[:-2].numel()
        size = max(1, _MOST_SCORES // (batch * positions))
        for start in range(0, rows, size):
            with _exact(query.device.type):
                scores = (query[..., start : start + size, :] @ key.transpose(-1, -2)) * self.scale
            end = start + scores.size(-2)
            if self.is_causal:
                later = torch.arange(positions, device=scores.device)
                own = torch.arange(start, end, device=scores.device)
                scores.masked_fill_(later[None, :] > own[:, None], -math.inf)
            if mask is not None:
                part = mask[..., start:end, :]
                if part.dtype is torch.bool:
                    scores.masked_fill_(~part, -math.inf)
                else:
                    scores += part
            yield scores


def _exact(device: str) -> contextlib.AbstractContextManager[object]:
    """Without autocast."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype in _FLASH_TYPES else tensor.float()


def by_heads(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with one dimension of batches and one of heads.

    As for ``scaled_dot_product_attention``, heads are the third dimension from the end of four or
    more. All before that are batches, and with three dimensions the first one is.
    """
    if tensor.dim() <= len("nsd"):
        return tensor.unsqueeze(-3).reshape(-1, 1, *tensor.shape[-2:])
    return tensor.reshape(-1, *tensor.shape[-3:])


def _row_entropy(scores: torch.Tensor) -> torch.Tensor:
    total = torch.logsumexp(scores, -1)
    share = torch.softmax(scores, -1)
    mean = (share * scores.masked_fill(share == 0, 0.0)).sum(-1)
    return _clean(total - mean)


def _clean(values: torch.Tensor) -> torch.Tensor:
    """NaN in place of infinities; entropies that rounding makes negative are 0."""
    return torch.where(torch.isfinite(values), values, math.nan)


_NORMS = {"query_norm": "query", "key_norm": "key", "value_norm": "value"}


def measured(call: Attention, wanted: Iterable[str]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """The wanted metrics of a call.

    Yields:
        Name, how values combine, and a tensor (2, heads): the number of rows, and the sum or the
        largest of their values.
    """
    for name in wanted:
        if name == "max_logit":
            yield name, Combine.MAX, _by_rows(call.max_logit(), Combine.MAX)
        elif name == "entropy":
            yield name, Combine.MEAN, _by_rows(call.entropy(), Combine.MEAN)
        else:
            rows = torch.linalg.vector_norm(_wide(getattr(call, _NORMS[name])), dim=-1)
            yield name, Combine.MEAN, _by_rows(rows, Combine.MEAN)


def _by_rows(values: torch.Tensor, how: str) -> torch.Tensor:
    count = (~torch.isnan(values)).sum((0, 2)).double()
    if how == Combine.MAX:
        return torch.stack([count, torch.nan_to_num(values, nan=-math.inf).amax((0, 2)).double()])
    return torch.stack([count, torch.nansum(values, (0, 2), dtype=torch.float64)])


def by_head(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The defined values of each head, flat: number of the head, values."""
    for index, own in enumerate(values.unbind(1)):
        flat = own.reshape(-1)
        yield index, flat[~torch.isnan(flat)]
