"""The threads that compute gradients or update parameters."""

from __future__ import annotations

from threading import get_ident

from traincheck.collect.tracking.tracked_model import still_there, this_thread


class TrainerThreads:
    """Registers each thread that trains, and tells whether there are several."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def register(self) -> bool:
        """Register this thread, which trains or is about to. True if others train, too."""
        if get_ident() not in self._threads and (here := this_thread()) is not None:
            self._threads = still_there(self._threads) | {here}
        return len(self._threads) > 1

    def __contains__(self, thread: int | None) -> bool:
        return thread in self._threads
