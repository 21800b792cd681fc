"""The emitters of a process: one per thread."""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Iterator
from os import getpid, getppid
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any

import torch

from traincheck.collect.launch.script import script_sketch
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import Lease
from traincheck.handlers import give_back
from traincheck.schema.claims import Schedule, needs_json
from traincheck.schema.marks import Marks
from traincheck.version import VERSION

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder


class Emitters:
    """Creates the emitter of each thread at its first record; reuses it when the thread ends.

    Args:
        session: the recording.
        schedule: the steps in which sampled records are taken.
    """

    def __init__(self, session: Recorder, schedule: Schedule) -> None:
        self._script: str | None = None
        self._session = session
        self._schedule = schedule
        self.forget()

    def __iter__(self) -> Iterator[Emitter]:
        return iter(self._all)

    def forget(self) -> None:
        """A forked child begins without emitters."""
        self._all: list[Emitter] = []
        self._free: deque[Emitter] = deque()  # their threads have ended
        self._threads = itertools.count(1)

    def make(self) -> Emitter:
        """A new emitter for the running thread, or that of a thread that has ended.

        A program that starts threads in each step would otherwise run out of descriptors. No lock:
        each access to shared data is one operation.
        """
        session = self._session
        main = get_ident() == main_thread().ident
        if not main and (left := self._left()) is not None:
            return left
        em = session.local.em = Emitter(session, 0 if main else next(self._threads))
        if not main:
            session.local.lease = Lease(em, self._free)
        self._all.append(em)
        try:
            self._write_process(em)
        except Exception as error:  # an argv that is not text; the records after it are still valid
            session.fault(self._write_process, error)
        return em

    def _left(self) -> Emitter | None:
        """The emitter of a thread that has ended, for the running one."""
        try:
            em = self._free.pop()
        except IndexError as error:
            give_back(error)
            return None
        em.top = em.inner = em.module = None  # nothing is open
        em.modules, em.busy = 0, False
        self._session.local.em, self._session.local.lease = em, Lease(em, self._free)
        return em

    def _write_process(self, em: Emitter) -> None:
        em.event("mark", {"text": Marks.PROCESS, "data": self._process()})

    def _source(self) -> str:
        """The sketch of the script, which is read once."""
        if self._script is None:
            self._script = script_sketch(sys.argv[0] if sys.argv else "")
        return self._script

    def _process(self) -> dict[str, Any]:
        session, settings = self._session, self._session.settings
        return {
            "pid": getpid(),
            "parent_pid": getppid(),
            "rank": session.rank,
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "traincheck": VERSION,
            "argv0": sys.argv[0] if sys.argv else "",
            **({"source": self._source()} if self._source() else {}),
            "level": "deep" if settings.is_deep else "default",
            **({"packages": list(settings.packages)} if settings.packages else {}),
            "instruments": session.instruments,
            "recorded": None if session.needs is None else needs_json(session.needs),
            "some": [self._schedule.first, self._schedule.every],
            "stats": sorted(session.stats.requested),
            "worker": session.is_worker,
            "world_size": _world_size(),
        }


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1
