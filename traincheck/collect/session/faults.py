"""Failures of traincheck: counted, recorded in the trace and in the manifest, never raised."""

from __future__ import annotations

import functools
import logging
import traceback
from collections import Counter
from os import getpid, mknod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from traincheck.collect import masking
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.trace_writer.event_file import LowSpaceError, write_file
from traincheck.handlers import give_back, is_of_handler
from traincheck.schema.layout import FOLLOWED, faults_file_name, lost_file_name
from traincheck.schema.marks import Marks

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

logger = logging.getLogger(__name__)

MAX_FAULTS = 8  # of one source; then its instrument is switched off


def leave_mark(directory: str) -> None:
    """Leave a note for the launcher that this process imported torch."""
    try:
        write_file(f"{directory}/{FOLLOWED}", b"")
    except OSError as error:  # without it the launcher can report less
        give_back(error)


class Faults:
    """The failures of one process.

    Attributes:
        lost: number of missing records that no mark has reported.
        gap: the last step that was reported to have missing records.
        is_storage_lost: whether writing has become impossible.
    """

    def __init__(self, session: Recorder) -> None:
        self._session = session
        self.lost = 0
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self.gap: int | None = None
        self.is_storage_lost = False

    def forget(self) -> None:
        """A forked child begins without failures."""
        self.lost, self.gap = 0, None
        self._counts.clear()
        self._reasons.clear()

    def count(self, source: Any, error: BaseException) -> None:
        """Count a failure. An instrument that fails repeatedly is removed.

        Raises:
            Exception: ``error``, if it comes from a signal handler of the program that ran inside
            code of traincheck, such as a deadline or a preemption.
        """
        is_ours = not is_of_handler(error)
        try:
            if is_ours:
                self._count(source, error)
            else:
                self._record_gap()
        except Exception as other:  # an error that cannot be shown, say; or the stack is full
            give_back(other)
            logger.debug("could not count a fault", exc_info=True)
        if not is_ours:
            raise error

    def storage_failed(self, error: OSError, records: int) -> None:
        """A write failed, probably because the disk is full: training continues without recording.

        records: number of lost records.
        """
        self.lost += records
        # Steps recorded after a gap would seem to lack calls
        self.is_storage_lost = True
        self._session.recording.on, self._session.recording.idle = False, True
        logger.debug("trace storage failed", exc_info=error)
        # The file may end exactly after a record. An empty file needs no space, and creating one
        # without opening it needs no descriptor, of which none may be left
        try:
            name = lost_file_name(getpid(), is_low=isinstance(error, LowSpaceError))
            mknod(Path(self._session.settings.directory) / name, 0o600)
        except OSError as other:
            give_back(other)
            logger.debug("could not leave a marker", exc_info=True)

    def _count(self, source: Any, error: BaseException) -> None:
        while isinstance(source, functools.partial):
            source = source.func
        name = str(getattr(source, "api", getattr(source, "__qualname__", type(source).__name__)))
        self._counts[name] += 1
        logger.debug("recording failed in %s", name, exc_info=error)
        self._record_gap()
        instrument = getattr(source, "__self__", None) or getattr(source, "owner", None)
        if not isinstance(instrument, Instrument):
            module = getattr(source, "__module__", None)
            known = [one for one in self._session.installed if type(one).__module__ == module]
            named = [one for one in known if name.startswith(f"{type(one).__name__}.")]
            instrument = next(iter(named or known), None)
        if self._counts[name] == MAX_FAULTS and instrument is not None:
            instrument.remove()
            self._session.instruments[instrument.name] = f"off: {_reason(error)}"
            reason = {"instrument": instrument.name, "reason": _reason(error)}
            self._mark(Marks.INSTRUMENT_DISABLED, reason)
            self.leave_note()
        elif self._counts[name] == 1:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            at = f"{Path(last[0].filename).name}:{last[0].lineno}" if last else ""
            self._reasons[name] = f"{_reason(error)} at {at}" if at else _reason(error)
            self._mark(Marks.FAULT, {"in": name, "reason": _reason(error), "at": at})
            self.leave_note()

    def _record_gap(self) -> None:
        """An absence from this step proves nothing."""
        self._session.steps.catch_up()
        step = self._session.clock.step
        if step == self.gap:
            return
        self.lost += 1
        if self._mark(Marks.DROPPED, {"records": self.lost}):
            self.gap, self.lost = step, 0

    def _mark(self, text: str, data: dict[str, Any]) -> bool:
        em = self._session.local.em
        if em is None:
            return False
        try:
            em.event("mark", {"text": text, "data": data})
        except Exception as error:  # the failure may be in writing itself
            give_back(error)
            logger.debug("could not note a fault", exc_info=True)
            return False
        return True

    def leave_note(self) -> None:
        """Write a note for the manifest: the failures and their counts so far."""
        if not self._counts:
            return
        note = {
            "faults": [
                {"in": name, "times": times, "reason": self._reasons.get(name, "")}
                for name, times in sorted(self._counts.items())
            ],
            "off": sorted(
                name for name, state in self._session.instruments.items() if state != "on"
            ),
        }
        try:
            name = f"{self._session.settings.directory}/{faults_file_name(getpid())}"
            write_file(name, orjson.dumps(note))
        except OSError as error:
            give_back(error)
            logger.debug("could not leave a note", exc_info=True)


def _reason(error: BaseException) -> str:
    """The text of an error, possibly of the program, without parts that look like secrets."""
    return masking.message(repr(error))
