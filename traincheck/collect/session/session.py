"""One recording in one process: its emitters, clock, instruments, and its end.

The instruments decide which calls are recorded.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from os import getpid
from typing import TYPE_CHECKING, Any

from traincheck.collect.active_session import CURRENT
from traincheck.collect.context import Hooks
from traincheck.collect.instruments.registry import INSTRUMENTS
from traincheck.collect.launch.settings import Settings
from traincheck.collect.moments.moments import Moments
from traincheck.collect.session.emitters import Emitters
from traincheck.collect.session.faults import Faults, leave_mark
from traincheck.collect.session.process_exit import ProcessExit
from traincheck.collect.session.step_boundary import StepBoundary
from traincheck.collect.session.user_marks import UserMarks
from traincheck.collect.stats.compared import Compared
from traincheck.collect.stats.tensor_stats import TensorStats
from traincheck.collect.steps.sampling import EveryNth
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.event_file import write_file
from traincheck.collect.trace_writer.guard import ThreadState, tell
from traincheck.collect.trace_writer.marks import ProcessEnd
from traincheck.collect.trace_writer.recording_state import Clock, RecordingFlags
from traincheck.collect.tracking.live_objects import LiveObjects
from traincheck.collect.tracking.state_records import StateSketches
from traincheck.collect.tracking.tracker import Tracker
from traincheck.handlers import give_back
from traincheck.schema.claims import SAMPLED_STEPS, Schedule
from traincheck.schema.layout import unused_file_name
from traincheck.schema.marks import Marks

if TYPE_CHECKING:
    from traincheck.collect.profile.recorder import ProfileRecorder

logger = logging.getLogger(__name__)


class Session:
    """Records this process until it ends. Failures of traincheck are counted, never raised."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.secret = settings.secret
        self.recording = RecordingFlags()
        self.clock = Clock()
        self.local = ThreadState()
        self.rank = int(os.environ.get("RANK", "0") or 0)
        needs = settings.needs
        thin = None if settings.whole or settings.every > 1 else needs
        thins_calls = thin is not None and thin.samples_calls
        thins_looks = thin is not None and thin.samples_scans
        if needs is not None:
            needs = needs.resolve(sample_calls=thins_calls, sample_scans=thins_looks)
        self.needs = needs
        schedule = SAMPLED_STEPS if thins_calls or thins_looks else Schedule()
        self.stats = TensorStats(needs, self.clock, every=settings.every)
        self.tracker = Tracker(needs, stats=self.stats)
        is_compared = settings.view == "diff"
        self.compared = (
            Compared(settings.outputs, sketches=settings.sketch) if is_compared else None
        )
        if self.compared is not None and self.compared.sketcher is not None:
            self.tracker.scans.sketches = StateSketches(self.compared.sketcher)
        self.sampling = EveryNth(settings.every, settings.warmup)
        self.profile: ProfileRecorder | None = None
        if settings.profile is not None:
            self._profile_steps(*settings.profile)
        self.live = LiveObjects()
        self.hooks = Hooks()
        self.moments = Moments(self)
        # Ids, until a backward pass, in a recorded step that follows an unrecorded one
        self.applied: AbstractSet[str] = frozenset()
        self.instruments: dict[str, str] = {}
        self.is_rng_set = False  # in this step, as far as the instruments observe it
        self.is_worker = False  # a loader worker, which has no steps
        self.installed: list[Any] = []
        self._leaving = ProcessExit(self)
        self.faults = Faults(self)
        self.ending = ProcessEnd()
        self._emitters = Emitters(self, schedule)
        self._boundary = StepBoundary(
            self,
            self._emitters,
            self.faults,
            schedule,
            thins_calls=thins_calls,
            thins_looks=thins_looks,
        )
        self.steps = self._boundary.steps
        self.user_marks = UserMarks(self)
        self._is_closed = False

    def _profile_steps(self, first: int, steps: int) -> None:
        """Record these steps alone, and profile them."""
        from traincheck.collect.profile.recorder import ProfileRecorder, window

        self.sampling = window(first, steps)
        self.profile = ProfileRecorder(self, first, steps)

    # -- life

    def start(self) -> None:
        """Install the instruments that the settings request. Call once, when torch is imported."""
        for instrument_class in INSTRUMENTS:
            instrument = instrument_class(self)
            if not instrument.is_wanted():
                continue
            try:
                parts = [instrument.install, instrument.install_observers]
                for part in reversed(parts) if instrument.observers_first else parts:
                    part()
                self.instruments[instrument.name] = "on"
                self.installed.append(instrument)
            except Exception as error:  # unknown torch: go without
                give_back(error)
                self.instruments[instrument.name] = f"off: {error!r}"
                logger.debug("instrument %s is off", instrument.name, exc_info=True)
        # Such a registration cannot be taken back: it must not keep an ended session alive.
        before, after = weakref.WeakMethod(self.flush), weakref.WeakMethod(self._after_fork)
        os.register_at_fork(before=lambda: _call(before()), after_in_child=lambda: _call(after()))
        atexit.register(self.close)
        CURRENT.session = self
        self._leaving.install()
        self._boundary.apply_sampling()
        if self.profile is not None:
            self.profile.start()

    def stop(self) -> None:
        """Remove every instrument; originals are back in place."""
        self.close()
        atexit.unregister(self.close)
        if CURRENT.session is self:
            CURRENT.session = None
        self.steps.manual = True  # wrappers that are still referenced no longer count steps
        if self.profile is not None:
            self.profile.stop()
        for instrument in reversed(self.installed):
            instrument.remove()
        self.installed.clear()
        self._leaving.remove()
        self.recording.on, self.recording.idle = False, True

    def close(self) -> None:
        """Write the last, unfinished step and everything that is buffered."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with unseen():
                self.steps.catch_up()
                em = self.local.em
                if em is not None and not self.is_worker and not self.faults.is_storage_lost:
                    self.tracker.detector.resolve(em)
                    if any(self.steps.counters.values()):
                        if self.recording.on:
                            tell(self, self.hooks.at_close, em)
                        is_over = self.steps.is_between or self.hooks.is_last_over(em)
                        if is_over and self.compared is not None and self.recording.on:
                            self._boundary.look_at_end(em)
                        if self.profile is not None:
                            self.profile.close(em, complete=is_over)
                        self._boundary.write_step(em, complete=is_over)
                if self.faults.lost and em is not None:
                    em.event("mark", {"text": Marks.DROPPED, "data": {"records": self.faults.lost}})
                self.faults.leave_note()
                if em is not None and self.stats.arguments.compares_ranks and not self.is_worker:
                    self.ending.record(em)
                # Most likely a package that was named wrongly.
                unused = [name for name in self.settings.packages if name not in sys.modules]
                if unused:
                    name = f"{self.settings.directory}/{unused_file_name(getpid())}"
                    write_file(name, "\n".join(unused).encode())
                self.flush(is_last=True)
                self.recording.on, self.recording.idle = False, True
        except Exception as error:  # at exit nothing may go wrong any more
            give_back(error)
            logger.debug("closing the trace failed", exc_info=True)

    def prepare_for_exec(self) -> None:
        """Write everything that is buffered: this process may be replaced now, or continue."""
        if self._is_closed or self.faults.is_storage_lost:
            return
        try:
            self.steps.catch_up()
            if not self.is_worker and self.steps.is_between:
                self.steps.end()
            self.faults.leave_note()
            self.flush(is_last=True)
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.prepare_for_exec, error)

    def flush(self, *, is_last: bool = False) -> None:
        """Write the records that are held. is_last: the process may end or be replaced now."""
        self.steps.catch_up()
        for em in self._emitters:
            em.flush(is_last=is_last)

    def _after_fork(self) -> None:
        for em in self._emitters:
            em.drop_inherited()
        self._emitters.forget()
        self.faults.forget()
        self.steps.forget()
        self.local.em = self.local.lease = None
        self._is_closed = False
        from multiprocessing import util

        # multiprocessing leaves its children by os._exit, after its own finalizers: no atexit there
        util.Finalize(None, self.close, exitpriority=-100)

    def become_worker(self) -> None:
        """Declare this process a DataLoader worker: its events have no step."""
        self.is_worker = True
        self.steps.manual = True  # a transform that is a module ends no step of the loop it left
        self.clock.set(None, self.clock.stage)
        self._boundary.begin_step()

    def emitter(self) -> Emitter:
        """The emitter of the running thread, made at its first record."""
        return self._emitters.make()

    def is_evaluating(self) -> bool:
        """Whether every live model with parameters that was called is in eval mode.

        Not if an optimizer was created for the next training, whose model was not called yet.
        """
        return not self.steps.is_awaiting and self.live.is_evaluating()

    def set_rank(self, rank: int) -> None:
        """The process group has set the rank: rename the files."""
        if rank == self.rank:
            return
        self.rank = rank
        for em in self._emitters:
            em.file.rename()  # readers use the stream

    # -- failure

    def fault(self, source: Any, error: BaseException) -> None:
        """Count a failure of traincheck: `Faults.count`."""
        self.faults.count(source, error)

    def storage_failed(self, error: OSError, records: int) -> None:
        """A write failed: `Faults.storage_failed`."""
        self.faults.storage_failed(error, records)

    # -- steps

    def stage(self, em: Emitter, stage: str) -> None:
        """Enter a stage; recorded if it changes."""
        if stage != self.clock.stage:  # tested at each call of a model
            self._boundary.stage(em, stage)


def _call(function: Callable[[], None] | None) -> None:
    if function is None:
        return
    try:
        function()
    except Exception:  # the interpreter would show it on stderr
        logger.debug("recording failed around a fork", exc_info=True)


def start(settings: Settings) -> None:
    """Begin to record this process. Called by the bootstrap once torch is imported."""
    leave_mark(settings.directory)
    session = Session(settings)
    try:
        session.start()
    except BaseException:  # of a signal handler of the program
        session.stop()
        raise
