"""One recording in one process: its emitters, clock, instruments, and its end.

What is recorded of which call is the business of instruments/.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import numbers
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from os import getpid, getppid, mknod
from pathlib import Path
from threading import get_ident, main_thread
from time import monotonic_ns
from typing import Any

import orjson
import torch

from traincheck.collect import masking
from traincheck.collect.active_session import CURRENT
from traincheck.collect.instruments._table import INSTRUMENTS
from traincheck.collect.launch.settings import Settings, needs_json
from traincheck.collect.session.faults import Faults, leave_mark
from traincheck.collect.session.process_exit import Leaving
from traincheck.collect.stats.tensor_stats import Numbers
from traincheck.collect.steps.pattern_counter import RepeatCounter, Repeated
from traincheck.collect.steps.sampling import EveryNth
from traincheck.collect.steps.step_counter import StepCounter
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.trace_writer.emitter import Clock, Emitter, Switch
from traincheck.collect.trace_writer.event_file import LowSpaceError, write_file
from traincheck.collect.trace_writer.process_end import Ending
from traincheck.collect.trace_writer.thread_state import Lease, Local
from traincheck.collect.tracking.tracker import Tracker
from traincheck.handlers import give_back
from traincheck.schema.apis import EVAL_STAGE, MARKS, Marks
from traincheck.schema.claims import THIN, Schedule
from traincheck.schema.layout import lost_file_name, unused_file_name
from traincheck.version import VERSION

logger = logging.getLogger(__name__)

_LONGEST_WAIT_NS = 100_000_000
_SKIPPED = b'{"k":"step","n":%d,"t":%d,%b,"counters":%b,"recorded":false}'


class Session:
    """Records what this process does until it ends. Our failure is counted, never raised."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.switch = Switch()
        self.clock = Clock()
        self.local = Local()
        self.rank = int(os.environ.get("RANK", "0") or 0)
        needs = settings.needs
        thin = None if settings.whole or settings.every > 1 else needs
        self._thins_calls = thin is not None and thin.is_sparse
        self._thins_looks = thin is not None and thin.looks_rarely
        if needs is not None:
            needs = needs.settled(calls=self._thins_calls, looks=self._thins_looks)
        self.needs = needs
        self.schedule = THIN if self._thins_calls or self._thins_looks else Schedule()
        self.numbers = Numbers(needs, self.clock, every=settings.every)
        self.tracker = Tracker(needs, numbers=self.numbers)
        self.sampling = EveryNth(settings.every, settings.warmup)
        ends = self._end_step, self._stepping_optimizers
        self.steps = (
            StepCounter(*ends)
            if self.sampling.is_all
            else RepeatCounter(*ends, self._skipped, self._caught_up)
        )
        self.optimizers: dict[str, weakref.ref[torch.optim.Optimizer]] = {}
        self.modes: dict[str, weakref.ref[torch.nn.Module]] = {}
        # Of this step: rates when the optimizers stepped, modes of models when they were called
        self.used_rates: dict[str, list[float]] = {}
        self.called_modes: dict[str, bool] = {}
        # By these, until a backward pass, in a recorded step that follows one that was not
        self.applied: AbstractSet[str] = frozenset()
        self._told: tuple[dict[str, list[float]], dict[str, bool]] | None = None  # of the last step
        self._told_text = b""
        self.at_step_end: list[Callable[[Emitter], None]] = []
        self.is_last_over: Callable[[Emitter], bool] = lambda _: False  # of a step without a call
        self.after_optimizer: list[Callable[[], None]] = []  # within the step, after its update
        self.after_step: list[Callable[[], None]] = []  # what a step left is written by then
        self.before_save: list[Callable[[], None]] = []  # a checkpoint is to be written next
        self.instruments: dict[str, str] = {}
        self.is_rng_set = False  # in this step, as far as the instruments see
        self.is_worker = False  # a process that serves another one's loop: it has no steps
        self.installed: list[Any] = []
        self._leaving = Leaving(self)
        self._emitters: list[Emitter] = []
        self._free: deque[Emitter] = deque()  # their threads have ended
        self._threads = itertools.count(1)
        self.faults = Faults(self)
        self.ending = Ending()
        self._counted: dict[str, int] = {}  # of the last step
        self._counted_text = b""
        self._is_closed = False
        self._is_storage_lost = False

    # -- life

    def start(self) -> None:
        """Install the instruments that the settings ask for. Call once, when torch is imported."""
        for instrument_class in INSTRUMENTS:
            instrument = instrument_class(self)
            if not instrument.is_wanted():
                continue
            try:
                instrument.install()
                self.instruments[instrument.name] = "on"
                self.installed.append(instrument)
            except Exception as error:  # another torch than we know: go without this instrument
                give_back(error)
                self.instruments[instrument.name] = f"off: {error!r}"
                logger.debug("instrument %s is off", instrument.name, exc_info=True)
        # Such a registration cannot be taken back: it must not keep an ended session alive.
        before, after = weakref.WeakMethod(self.flush), weakref.WeakMethod(self._after_fork)
        os.register_at_fork(before=lambda: _call(before()), after_in_child=lambda: _call(after()))
        atexit.register(self.close)
        CURRENT.session = self
        self._leaving.install()
        self._apply_sampling()

    def stop(self) -> None:
        """Remove every instrument; originals are back in place."""
        self.close()
        atexit.unregister(self.close)
        if CURRENT.session is self:
            CURRENT.session = None
        self.steps.manual = True  # wrappers that somebody still holds count no steps any more
        for instrument in reversed(self.installed):
            instrument.remove()
        self.installed.clear()
        self._leaving.remove()
        self.switch.on, self.switch.idle = False, True

    def close(self) -> None:
        """Write the last, unfinished step and all that is buffered."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with unseen():
                self.steps.catch_up()
                em = self.local.em
                if em is not None and not self.is_worker and not self._is_storage_lost:
                    self.tracker.looker.resolve(em)
                    if any(self.steps.counters.values()):
                        is_over = self.steps.is_between or self.is_last_over(em)
                        self._write_step(em, complete=is_over)
                if self.faults.lost and em is not None:
                    em.event("mark", {"text": Marks.DROPPED, "data": {"records": self.faults.lost}})
                self.faults.leave_note()
                if em is not None and self.numbers.compares_ranks and not self.is_worker:
                    self.ending.tell(em)
                self._tell_unused()
                self.flush()
                self.switch.on, self.switch.idle = False, True
        except Exception as error:  # at exit nothing may go wrong any more
            give_back(error)
            logger.debug("closing the trace failed", exc_info=True)

    def prepare_for_exec(self) -> None:
        """Write all that there is: this process may be replaced now, or go on."""
        if self._is_closed or self._is_storage_lost:
            return
        try:
            self.steps.catch_up()
            if not self.is_worker and self.steps.is_between:
                self.steps.end()
            self.faults.leave_note()
            self.flush()
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.prepare_for_exec, error)

    def _tell_unused(self) -> None:
        """Most likely a package that was named wrongly."""
        unused = [name for name in self.settings.packages if name not in sys.modules]
        if unused:
            name = f"{self.settings.directory}/{unused_file_name(getpid())}"
            write_file(name, "\n".join(unused).encode())

    def flush(self) -> None:
        """Hand what is buffered to the kernel."""
        self.steps.catch_up()
        for em in self._emitters:
            em.flush()

    def _after_fork(self) -> None:
        for em in self._emitters:
            em.drop_inherited()
        self._emitters, self._free, self._threads = [], deque(), itertools.count(1)
        self.faults.forget()
        self.steps.forget()
        self.local.em = self.local.lease = None
        self._is_closed = False
        from multiprocessing import util

        # multiprocessing leaves its children by os._exit, after its own finalizers: no atexit there
        util.Finalize(None, self.close, exitpriority=-100)

    def become_worker(self) -> None:
        """This process serves another one's loop (a DataLoader worker): its events have no step."""
        self.is_worker = True
        self.steps.manual = True  # a transform that is a module ends no step of the loop it left
        self.clock.set(None, self.clock.stage)
        self._turn()

    # -- emitters

    def emitter(self) -> Emitter:
        """The emitter of the running thread, made at its first record.

        Or taken over from one that has ended: a program that starts threads in each step would
        run out of descriptors. No lock: each access to what threads share is one operation.
        """
        main = get_ident() == main_thread().ident
        if not main and (left := self._left()) is not None:
            return left
        em = self.local.em = Emitter(self, 0 if main else next(self._threads))
        if not main:
            self.local.lease = Lease(em, self._free)
        self._emitters.append(em)
        try:
            self._write_process(em)
        except Exception as error:  # an argv that is no text; the records after it are still good
            self.fault(self._write_process, error)
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
        self.local.em, self.local.lease = em, Lease(em, self._free)
        return em

    def _write_process(self, em: Emitter) -> None:
        data = {
            "pid": getpid(),
            "parent_pid": getppid(),
            "rank": self.rank,
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "traincheck": VERSION,
            "argv0": sys.argv[0] if sys.argv else "",
            "level": "deep" if self.settings.is_deep else "default",
            **({"packages": list(self.settings.packages)} if self.settings.packages else {}),
            "instruments": self.instruments,
            "recorded": None if self.needs is None else needs_json(self.needs),
            "some": [self.schedule.first, self.schedule.every],
            "stats": sorted(self.numbers.asked),
            "worker": self.is_worker,
            "world_size": _world_size(),
        }
        em.event("mark", {"text": Marks.PROCESS, "data": data})

    def rates_of(self, optimizer: torch.optim.Optimizer) -> list[float]:
        """The learning rate of each group, as it is now; none where one of them is no number."""
        rates: list[float] = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            found = rate if type(rate) is float else _lr(rate)
            if found is None or found - found != 0:  # the last: not finite
                return []
            rates.append(found)
        return rates

    def is_evaluating(self) -> bool:
        """Whether every live model with parameters that was called is in eval mode.

        Not where an optimizer was made for the next training, whose model was not called yet.
        """
        if self.steps.is_awaiting:
            return False
        live = [m for ref in self.modes.values() if (m := ref()) is not None]
        mode = [
            getattr(m, "training", True) for m in live if next(m.parameters(), None) is not None
        ]
        return bool(mode) and not any(mode)

    def set_rank(self, rank: int) -> None:
        """The process group told the rank: files get their right name."""
        if rank == self.rank:
            return
        self.rank = rank
        for em in self._emitters:
            em.file.rename()  # readers go by stream

    # -- failure

    def fault(self, source: Any, error: BaseException) -> None:
        """Count a failure of our own: `Faults.count`."""
        self.faults.count(source, error)

    def storage_failed(self, error: OSError, records: int) -> None:
        """A write failed, most likely on a full disk, or nearly full: training goes on without."""
        self.faults.lost += records
        self._is_storage_lost = (
            True  # steps recorded behind a gap would look as if they lacked calls
        )
        self.switch.on, self.switch.idle = False, True
        logger.debug("trace storage failed", exc_info=error)
        # The file may end exactly behind a record. An empty file needs no room of its own, and to
        # make one without opening it no descriptor, of which there may be none left either
        try:
            name = lost_file_name(getpid(), is_low=isinstance(error, LowSpaceError))
            mknod(Path(self.settings.directory) / name, 0o600)
        except OSError as other:
            give_back(other)
            logger.debug("could not leave a marker", exc_info=True)

    # -- steps

    def _stepping_optimizers(self, done: AbstractSet[str]) -> set[str]:
        """Those that are alive, and hold a parameter that none of ``done`` does."""
        live = dict(self.live_optimizers())
        updated = {id(p) for name in done & live.keys() for p in _parameters(live[name])}
        return {
            name
            for name, found in live.items()
            if not updated or any(id(p) not in updated for p in _parameters(found))
        }

    def live_optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        """Id and object of every optimizer that is still alive."""
        return [
            (name, found)
            for name, ref in list(self.optimizers.items())
            if (found := ref()) is not None
        ]

    def held(self) -> set[int]:
        """Identities of all parameters that some optimizer holds now."""
        return {id(p) for _, found in self.live_optimizers() for p in _parameters(found)}

    def stage(self, em: Emitter, stage: str) -> None:
        """Enter a stage; recorded when it is another one."""
        previous = self.clock.stage
        if stage != previous:
            self.clock.set(self.clock.step, stage)
            if self._thins_calls:
                self.switch.inner = self.schedule.is_whole(self.clock.step, stage)
            if self.switch.on:
                em.event("stage", {"previous": previous})

    def signal(self) -> None:
        """After a step of an optimizer: whether skipped steps must watch for the boundary."""
        self.switch.idle = not self.switch.on and not self.steps.is_between

    def _end_step(self) -> None:
        em = self.local.em or self.emitter()
        was_on = self.switch.on
        busy, em.busy = em.busy, True
        try:
            self._close_step(em)
        except Exception as error:  # the count goes on whatever we got wrong
            self.fault(self._close_step, error)
        finally:  # also after an exception of a signal handler
            try:
                self._begin_step(was_on=was_on)
            except Exception as error:  # training must go on whatever we got wrong
                self.fault(self._begin_step, error)
            finally:
                em.busy = busy
        if self.after_step:
            self._after_step(em)

    def _begin_step(self, *, was_on: bool) -> None:
        self.clock.set(self.steps.step + 1, self.clock.stage)
        with unseen():
            if not self.sampling.is_all:
                self._apply_sampling()
            if was_on or self.switch.on:
                self._turn()

    def _close_step(self, em: Emitter) -> None:
        with unseen():
            if self.tracker.looker.pending:
                self.tracker.looker.resolve(em)
            if self.switch.on:
                self._write_whole_step(em)
            else:
                self._write_skipped(em)

    def _write_whole_step(self, em: Emitter) -> None:
        for look in self.at_step_end:
            look(em)
        # A follower that has read the end of a step has all of the step: of all threads
        for other in self._emitters:
            if other is not em:
                other.flush(is_own=False)
        self._write_step(em, complete=True)
        em.flush()

    def _turn(self) -> None:
        """A step begins."""
        clock, switch = self.clock, self.switch
        is_taken = self.schedule.takes(clock.step)
        self.numbers.turn(is_taken=is_taken)
        if self._thins_calls:
            switch.inner = is_taken or clock.stage == EVAL_STAGE
        if self._thins_looks:
            looked, switch.looks = switch.looks, is_taken
            if is_taken and not looked:
                self.tracker.rebaseline(self.live_optimizers())

    def _after_step(self, em: Emitter) -> None:
        busy, em.busy = em.busy, True
        try:
            for action in self.after_step:
                action()
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self._after_step, error)
        finally:
            em.busy = busy

    def mark_step(self) -> None:
        """The user's own word on where a step ends; from the first one on the only one."""
        self.steps.catch_up()
        self.steps.manual = True
        if any(self.steps.counters.values()):
            self.steps.end()
            self.signal()

    def annotate(self, text: str, data: Mapping[str, Any]) -> None:
        """The user's own mark. What is no JSON becomes text."""
        em = self.local.em or self.emitter()
        if not self.switch.on or em.busy:
            return
        em.busy = True
        try:
            options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
            told = f"user: {text}" if text in MARKS else masking.message(str(text))
            fields = {"text": told, "data": masking.noted(dict(data))}
            with unseen():
                em.ready("mark", orjson.dumps(fields, default=repr, option=options)[1:-1])
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.annotate, error)
        finally:
            em.busy = False

    def _apply_sampling(self) -> None:
        if self.is_worker or self.clock.step is None or self._is_storage_lost:
            return
        wanted = self.sampling.wants(self.clock.step)
        if wanted is self.switch.on and wanted is not self.switch.idle:
            return
        if wanted and not self.switch.on:  # what was not looked at may have changed
            self.tracker.rebaseline(self.live_optimizers())
            self.applied = self.steps.applied
        if not wanted:  # what a stage is in steps that are not recorded is not looked at
            self.clock.set(self.clock.step, "train")
        self.switch.on = wanted
        self.switch.idle = not wanted

    def differs(self) -> None:
        """Another sign has come than the one that `StepCounter.expects` has just given."""
        try:
            self.steps.differs()
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.differs, error)

    def _skipped(self) -> int:
        """How many steps leave nothing but a record that they were, from the current one on."""
        if self.switch.on or self.after_step or self.is_worker or self._is_storage_lost:
            return 0
        return self.sampling.skipped(self.steps.step)

    def _caught_up(self, found: Repeated) -> None:
        """Such steps have ended."""
        if found.times_ns and not self._is_storage_lost:
            em = self.local.em or self.emitter()
            for step, time_ns in enumerate(found.times_ns, found.first):
                self.clock.set(step, self.clock.stage)
                self._put_skipped(em, time_ns, found.counters)
        self.clock.set(self.steps.step, self.clock.stage)
        self.signal()

    def _write_skipped(self, em: Emitter) -> None:
        now = monotonic_ns()
        self._put_skipped(em, now, self.steps.counters)
        # Such a step has one record. It may wait for some others: a write takes ten times as long
        if now - em.flushed_ns > _LONGEST_WAIT_NS:
            em.flush()

    def _put_skipped(self, em: Emitter, time_ns: int, counters: Mapping[str, int]) -> None:
        told, seq = self._counters(counters), em.seq
        em.line(_SKIPPED % (seq, time_ns, self.clock.fields, told), seq)

    def _counters(self, counters: Mapping[str, int]) -> bytes:
        """Counters of a step, serialized once: one step is like the other."""
        if counters != self._counted:
            self._counted = dict(counters)
            named = {name: count for name, count in counters.items() if count}
            self._counted_text = orjson.dumps(named)
        return self._counted_text

    def _write_step(self, em: Emitter, *, complete: bool) -> None:
        if not self.switch.on:
            self._write_skipped(em)
            return
        rates, modes = self.used_rates, self.called_modes
        # Not what a scheduler has set since, for the next step
        if rates.keys() != self.optimizers.keys():
            rates = {**{name: self.rates_of(o) for name, o in self.live_optimizers()}, **rates}
        if not all(rates.values()):
            rates = {name: found for name, found in rates.items() if found}
        # At the end of a program its models may be gone: then as in their last call
        for name, ref in self.modes.items():
            module = ref()
            if module is not None:
                modes[name] = bool(getattr(module, "training", True))
        self.used_rates, self.called_modes = {}, {}
        if (rates, modes) != self._told:
            self._told = rates, modes
            self._told_text = b'"lr":%b,"modes":%b' % (orjson.dumps(rates), orjson.dumps(modes))
        body = b'"counters":%b,%b' % (self._counters(self.steps.counters), self._told_text)
        if self.faults.gap == self.clock.step:
            body += b',"recorded":false'
        em.ready("step", body if complete else body + b',"complete":false')


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def _lr(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.is_cpu else None  # reading it would wait for the device
    return float(value) if isinstance(value, numbers.Real) else None  # those of numpy too


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
