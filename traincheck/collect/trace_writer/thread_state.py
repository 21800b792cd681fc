"""The emitter of each thread, and its return when the thread ends."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincheck.collect.trace_writer.emitter import Emitter


class ThreadState(threading.local):
    """The emitter of the running thread; None until its first record."""

    em: Emitter | None = None
    lease: Lease | None = None


class Lease:
    """Returns an emitter when its thread ends and its locals are freed.

    This also works for threads of C++. Python does not know whether those are alive.
    """

    __slots__ = ("_em", "_free")

    def __init__(self, em: Emitter, free: deque[Emitter]) -> None:
        self._em, self._free = em, free

    def __del__(self) -> None:
        self._free.append(self._em)
