"""Segments of `torch.utils.checkpoint` in a copy: evidence for a gradient that is wrong."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils import checkpoint as checkpoints

from traincheck.collect.trace_writer.call_site import outside

# Below `checkpoint`, which libraries bind before it could be replaced.
_FUNCTION = "_checkpoint_without_reentrant_generator"


class Recomputed:
    """Counts the segments."""

    def __init__(self) -> None:
        self._count = 0
        self._without_state = 0
        self._place = ""

    def install(self) -> None:
        """Follow the calls; for a copy of the process, which ends anyway."""
        original = getattr(checkpoints, _FUNCTION, None)
        if original is None:
            return

        def generator(function: Any, preserve: bool = True, *args: Any, **kwargs: Any) -> Any:
            self.meet(preserves=preserve)
            return original(function, preserve, *args, **kwargs)

        setattr(checkpoints, _FUNCTION, generator)

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
