"""Sketches of tracked variables, in the records of their changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import as_plain
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.tracking.tracked_tensor import TrackedTensor


class StateSketches:
    """Puts sketches into the next records of variables."""

    def __init__(self, sketcher: Sketcher) -> None:
        self._sketcher = sketcher

    def of_new(self, variable: TrackedTensor, tensor: torch.Tensor) -> None:
        """A variable is found: its record follows. Waits for its device."""
        if _is_free(variable):
            variable.stats = self._sketcher.text(tensor)

    @contextmanager
    def of(self, found: Sequence[tuple[TrackedTensor, torch.Tensor | None]]) -> Iterator[None]:
        """Within the block these variables are scanned: sketch those that have changed."""
        for variable, tensor in found:
            if tensor is not None and not _is_unchanged(variable, tensor) and _is_free(variable):
                if as_plain(tensor).is_cpu:
                    variable.stats = self._sketcher.text(tensor)
                elif (late := self._sketcher.numbers(tensor)) is not None:
                    variable.stats = late
        try:
            yield
        finally:
            for variable, _ in found:
                variable.stats = b""


def _is_free(variable: TrackedTensor) -> bool:
    return type(variable.stats) is bytes and not variable.stats


def _is_unchanged(variable: TrackedTensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor on the CPU is as it was at the last scan: it leaves no record."""
    if not as_plain(tensor).is_cpu or variable.digest is None:
        return False
    return fingerprint(tensor) == variable.digest
