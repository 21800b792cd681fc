"""Segments of `torch.utils.checkpoint` in a copy: evidence for a gradient that is wrong."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch.utils import checkpoint as checkpoints

from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import hidden

# Below `checkpoint`, which libraries bind before it could be replaced. From torch 2.14 on the first
# is called, and the second is for others.
_FUNCTIONS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)


class Recomputed:
    """Counts the segments."""

    def __init__(self) -> None:
        self._count = 0
        self._without_state = 0
        self._place = ""

    def install(self) -> None:
        """Follow the calls; for a copy of the process, which ends anyway."""
        name = next((one for one in _FUNCTIONS if hasattr(checkpoints, one)), None)
        if name is None:
            return
        original = getattr(checkpoints, name)
        signature = inspect.signature(original)

        @hidden
        def generator(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            self.meet(preserves=given.get("preserve_rng_state", True))
            return original(*args, **kwargs)

        setattr(checkpoints, name, generator)

    def meet(self, *, preserves: bool) -> None:
        """A segment begins. preserves: whether it restores random states."""
        self._count += 1
        self._without_state += not preserves
        self._place = self._place or outside(sys._getframe(2)) or ""

    def facts(self) -> dict[str, str]:
        """The facts that are reported."""
        if not self._count:
            return {}
        return {
            "recomputed": str(self._count),
            "without_state": str(self._without_state or ""),
            "place": self._place,
        }
