"""Which emitter a thread has, and who gives it back when the thread ends."""

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
    """Gives an emitter back when its thread ends, with all that is local to it.

    Whoever started it: of threads of C++, Python does not know whether they are alive.
    """

    __slots__ = ("_em", "_free")

    def __init__(self, em: Emitter, free: deque[Emitter]) -> None:
        self._em, self._free = em, free

    def __del__(self) -> None:
        self._free.append(self._em)
