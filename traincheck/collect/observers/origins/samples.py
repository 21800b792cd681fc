"""Samples of tensors: some elements, evenly spread, and short linear sketches of them.

A sample is a copy, so the tensor is not kept alive. Taking one waits for no device. The same
elements are sampled in each process, because the stride follows from the number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traincheck.collect.tensors.device_fingerprint import host
from traincheck.collect.tensors.readable import FLOATS, is_countable
from traincheck.collect.tensors.reading import as_plain
from traincheck.collect.tensors.sketch import Sketcher

ELEMENTS = 4096  # of a sample, at most
FOLDED = 8  # numbers of a short sketch
_SKETCHED = 512  # elements of a sample that is only to be recognized
_LARGEST_COPY = 1 << 20  # elements of a tensor that is not contiguous, which is copied as a whole


def sample(tensor: torch.Tensor, most: int = ELEMENTS) -> torch.Tensor | None:
    """A copy of some elements of a floating-point tensor, in one dim.

    Returns:
        At most ``most`` numbers of the dtype and on the device of the tensor; None if it cannot
        be read.
    """
    tensor = as_plain(tensor)
    if tensor.dtype not in FLOATS or not is_countable(tensor):
        return None
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        if tensor.numel() > _LARGEST_COPY:
            return None
        tensor = tensor.contiguous()
    stride = max(1, tensor.numel() // most) | 1  # odd, so as not to follow a column
    return tensor.view(-1)[::stride][:most].clone()


def distances(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """The L2 norms of the differences of samples of equal length. Waits for their devices once."""
    if not pairs:
        return []
    squares = [
        (one.double() - other.to(one.device).double()).square().sum() for one, other in pairs
    ]
    home = squares[0].device
    return host(torch.stack([found.to(home) for found in squares]).sqrt()).tolist()


def sketch(sketcher: Sketcher, tensor: torch.Tensor) -> torch.Tensor | None:
    """The sketch of a sample of a tensor: 64 signed sums, and the sum of squares.

    Waits for no device. It recognizes a tensor among others of its shape.
    """
    part = sample(tensor, _SKETCHED)
    return None if part is None else sketcher.numbers(part)


def read_short(found: Sequence[torch.Tensor]) -> list[tuple[float, ...]]:
    """`sketch` of several tensors, folded into `FOLDED` sums and the L2 norm: linear still.

    Waits for their devices once.
    """
    if not found:
        return []
    home = found[0].device
    rows = host(torch.stack([each.to(home) for each in found]))
    sums = rows[:, :-1].reshape(len(found), -1, FOLDED).sum(1)
    both = torch.cat([sums, rows[:, -1:].sqrt()], 1).tolist()
    return [tuple(float(f"{number:.7g}") for number in row) for row in both]
