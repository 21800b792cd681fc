"""Step boundaries: write the record of a step, and decide whether the next one is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING

import orjson

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.steps.pattern_counter import PatternStepCounter, RepeatedSteps
from traincheck.collect.steps.step_counter import StepCounter
from traincheck.collect.templates import (
    NOT_COMPLETE,
    NOT_RECORDED,
    RATES_AND_MODES,
    SKIPPED_STEP,
    STEP,
)
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.trace_writer.guard import guarded, tell
from traincheck.schema.claims import Schedule
from traincheck.schema.marks import EVAL_STAGE

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder
    from traincheck.collect.session.emitters import Emitters
    from traincheck.collect.session.faults import Faults
    from traincheck.collect.trace_writer.emitter import Emitter

_LONGEST_WAIT_NS = 100_000_000


class StepBoundary:
    """Ends the steps of a session.

    Args:
        session: the recording; its clock and flags are set here.
        emitters: the emitters of all threads.
        faults: counts failures.
        schedule: the steps in which sampled records are taken.
        thins_calls, thins_looks: whether calls within models and changes of variables are sampled.

    Attributes:
        steps: counts the steps.
    """

    def __init__(
        self,
        session: Recorder,
        emitters: Emitters,
        faults: Faults,
        schedule: Schedule,
        *,
        thins_calls: bool,
        thins_looks: bool,
    ) -> None:
        self._session, self._emitters, self._faults = session, emitters, faults
        self._schedule = schedule
        self._thins_calls, self._thins_looks = thins_calls, thins_looks
        ends = self._end, session.live.without_update
        self.steps = (
            StepCounter(*ends)
            if session.sampling.is_all
            else PatternStepCounter(*ends, self._skipped, self._caught_up)
        )
        self._last_fields: tuple[dict[str, list[float]], dict[str, bool]] | None = None
        self._last_fields_json = b""
        self._last_counters: dict[str, int] = {}
        self._last_counters_json = b""

    def stage(self, em: Emitter, stage: str) -> None:
        """Enter another stage than the present one."""
        clock, recording = self._session.clock, self._session.recording
        previous = clock.stage
        clock.set(clock.step, stage)
        if self._thins_calls:
            recording.inner_calls = self._schedule.is_full(clock.step, stage)
        if recording.on:
            em.event("stage", {"previous": previous})
            for action in self._session.hooks.at_stage.all:
                action(stage)

    def apply_sampling(self) -> None:
        """Record the step that begins, or not."""
        session, clock, recording = self._session, self._session.clock, self._session.recording
        if session.is_worker or clock.step is None or self._faults.is_storage_lost:
            return
        wanted = session.sampling.wants(clock.step)
        if wanted is recording.on and wanted is not recording.idle:
            return
        if wanted and not recording.on:  # what was not looked at may have changed
            session.tracker.scans.rebaseline(session.live.live_optimizers())
            session.applied = self.steps.applied
        if not wanted:  # the stage of unrecorded steps is not observed
            clock.set(clock.step, "train")
        recording.on = wanted
        recording.idle = not wanted

    def begin_step(self) -> None:
        """A recorded step begins, or one behind it."""
        session, clock, recording = self._session, self._session.clock, self._session.recording
        is_taken = self._schedule.includes(clock.step)
        session.stats.begin_step(is_taken=is_taken)
        if self._thins_calls:
            recording.inner_calls = is_taken or clock.stage == EVAL_STAGE
        if self._thins_looks:
            looked, recording.scans = recording.scans, is_taken
            if is_taken and not looked:
                session.tracker.scans.rebaseline(session.live.live_optimizers())

    def write_step(self, em: Emitter, *, complete: bool) -> None:
        """Write the record of the step that ends. complete: whether it was observed completely."""
        with self._own_stage():
            self._write_record(em, complete=complete)

    @contextmanager
    def _own_stage(self) -> Iterator[None]:
        """The end of a step that has trained is in training, also after an evaluation in it."""
        clock, counters = self._session.clock, self.steps.counters
        stage = clock.stage
        if stage == EVAL_STAGE and (counters["backward"] or counters["optimizer_step"]):
            clock.set(clock.step, "train")
        try:
            yield
        finally:
            clock.set(clock.step, stage)

    def _write_record(self, em: Emitter, *, complete: bool) -> None:
        session = self._session
        if not session.recording.on:
            self._write_skipped(em)
            return
        fields = session.live.take_step()
        if fields != self._last_fields:
            self._last_fields = fields
            self._last_fields_json = RATES_AND_MODES % tuple(map(orjson.dumps, fields))
        body = STEP % (self._counters(self.steps.counters), self._last_fields_json)
        if self._faults.gap == session.clock.step:
            body += NOT_RECORDED
        if session.compared is not None:
            body += session.compared.take_text()
        em.write_json("step", body if complete else body + NOT_COMPLETE)

    def _end(self) -> None:
        session = self._session
        em = session.local.em or session.emitter()
        was_on = session.recording.on
        busy, em.busy = em.busy, True
        try:
            self._close(em)
        except Exception as error:  # the count must continue whatever we got wrong
            session.fault(self._close, error)
        finally:  # also after an exception of a signal handler
            try:
                self._go_on(was_on=was_on)
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(self._go_on, error)
            finally:
                em.busy = busy
        if session.hooks.after_step.all:
            guarded(em, self._after_step)

    def _go_on(self, *, was_on: bool) -> None:
        """Continue with the next step."""
        session = self._session
        session.clock.set(self.steps.step + 1, session.clock.stage)
        with unseen():
            if not session.sampling.is_all:
                self.apply_sampling()
            if was_on or session.recording.on:
                self.begin_step()

    def _close(self, em: Emitter) -> None:
        with unseen():
            detector = self._session.tracker.detector
            if detector.pending:
                detector.resolve(em)
            if self._session.recording.on:
                self.look_at_end(em)
                # A follower that has read the end of a step has the whole step, of all threads
                for other in self._emitters:
                    if other is not em:
                        other.flush(is_own=False)
                self.write_step(em, complete=True)
                em.flush()
            else:
                self._write_skipped(em)

    def look_at_end(self, em: Emitter) -> None:
        """Record what hooks observe at the end of a recorded step."""
        with self._own_stage():
            tell(self._session, self._session.hooks.at_step_end, em)

    def _after_step(self) -> None:
        for action in self._session.hooks.after_step.all:
            action()

    # -- steps that are not recorded

    def _skipped(self) -> int:
        """Number of steps that leave only their step record, from the current one on."""
        session = self._session
        is_asked = session.recording.on or session.hooks.after_step.all or session.is_worker
        if is_asked or self._faults.is_storage_lost:
            return 0
        return session.sampling.skipped(self.steps.step)

    def _caught_up(self, found: RepeatedSteps) -> None:
        """Such steps have ended."""
        session, clock = self._session, self._session.clock
        if found.times_ns and not self._faults.is_storage_lost:
            em = session.local.em or session.emitter()
            for step, time_ns in enumerate(found.times_ns, found.first):
                clock.set(step, clock.stage)
                self._put_skipped(em, time_ns, found.counters)
        clock.set(self.steps.step, clock.stage)
        watch_for_boundary(session)

    def _write_skipped(self, em: Emitter) -> None:
        now = monotonic_ns()
        self._put_skipped(em, now, self.steps.counters)
        # Such a step has one record. It may wait for some others: a write takes ten times as long
        if now - em.flushed_ns > _LONGEST_WAIT_NS:
            em.flush()

    def _put_skipped(self, em: Emitter, time_ns: int, counters: Mapping[str, int]) -> None:
        text, seq = self._counters(counters), em.seq
        em.append(SKIPPED_STEP % (seq, time_ns, self._session.clock.fields, text), seq)

    def _counters(self, counters: Mapping[str, int]) -> bytes:
        """Counters of a step, serialized once: most steps are alike."""
        if counters != self._last_counters:
            self._last_counters = dict(counters)
            named = {name: count for name, count in counters.items() if count}
            self._last_counters_json = orjson.dumps(named)
        return self._last_counters_json
