"""`traincheck.watch`: record and check the training of this process while it runs.

The instruments and the engine are those of a launched run. The engine reads the events when a step
ends, in the thread that trains. Everything is removed when the watch ends.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import shutil
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from traincheck.api import make_engine
from traincheck.check.suppression.source_files import SourceFiles, program_in, trusted_folders
from traincheck.collect.active_session import CURRENT
from traincheck.collect.launch.settings import Settings
from traincheck.collect.launch.signals import refuse_other_systems
from traincheck.collect.steps.sampling import OnDemand
from traincheck.config import load_config
from traincheck.errors import (
    OutputError,
    TraincheckError,
    TrainingHalted,
    UsageError,
)
from traincheck.handlers import give_back
from traincheck.integrations._sending import make_notifier
from traincheck.integrations.watch_options import Options
from traincheck.live.following import Following, Listener
from traincheck.page.notebook import report_html
from traincheck.report.sentences import conclusion
from traincheck.report.text_report import one_line, write_text
from traincheck.schema.findings import SEVERITIES, Finding, Findings, Report
from traincheck.schema.layout import EVENT_GLOB
from traincheck.store.tail import PollReader

if TYPE_CHECKING:
    from traincheck.collect.session.attach import WatchedObjects
    from traincheck.collect.session.session import Session

__all__ = ["Options", "TrainingHalted", "Watch", "watch"]

_logger = logging.getLogger("traincheck")
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
_SKIPPED_STEPS = 1000  # steps whose ends are read together
_FILE_BYTES = 1 << 22  # of a trace that is not kept; checked events are dropped beyond it

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Watch:
    """One watch: a context manager; as a decorator, one for each call. Made by `watch`.

    In a process that is recorded already it does not record: a watch within a watch joins the outer
    one, and one under ``traincheck-collect`` or ``traincheck run`` leaves the checking to that
    command.
    """

    def __init__(self, subjects: Sequence[Any], options: Options, *, seeks: bool = True) -> None:
        # Objects that may lead to others, such as lists, until it begins; then weak references
        self._given: Sequence[Any] = subjects
        self._refs: list[weakref.ref[Any]] = []
        self._options = options
        self._seeks = seeks  # the optimizers of the models, if none is given
        self._running: _Running | None = None
        self._joined: Watch | None = None
        self._report: Report | None = None

    @property
    def is_active(self) -> bool:
        """Whether the watch is active."""
        return self._running is not None or self._joined is not None

    @property
    def findings(self) -> Findings:
        """The findings so far, the first cause first."""
        return Findings(self.report().findings)

    @property
    def has_error(self) -> bool:
        """Whether a finding of severity error was announced. The call costs nothing."""
        if self._joined is not None:
            return self._joined.has_error
        return self._running is not None and self._running.has_error

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of announced findings by severity. The call costs nothing."""
        if self._joined is not None:
            return self._joined.counts
        if self._running is not None:
            return self._running.counts
        found = Counter(one.severity for one in self._report.findings) if self._report else {}
        return {severity: found.get(severity, 0) for severity in SEVERITIES}

    def report(self) -> Report:
        """The present report; once the watch has ended, the final one.

        Raises:
            UsageError: the watch has not begun.
        """
        if self._joined is not None:
            return self._joined.report()
        if self._running is not None:
            return self._running.engine.so_far()
        if self._report is None:
            raise UsageError("nothing was watched yet", fix="with traincheck.watch(...) as run:")
        return self._report

    def __repr__(self) -> str:
        """A summary in one line, for notebooks."""
        if not self.is_active and self._report is None:
            return "<traincheck: nothing was watched yet>"
        return f"<{conclusion(self.report())}{', and watching' if self.is_active else ''}>"

    def _repr_html_(self) -> str:
        if not self.is_active and self._report is None:
            return escape(repr(self))
        return report_html(self.report())

    def settle(self) -> bool:
        """Check the step that the loop has just finished. Returns `has_error` after that.

        For callbacks of frameworks: otherwise a step is checked when the next one begins, which may
        be after a checkpoint was written.
        """
        if self._joined is not None:
            return self._joined.settle()
        if self._running is not None:
            self._running.settle()
        return self.has_error

    def check_next_step(self) -> None:
        """Check the next step that begins, regardless of ``every`` and ``limit``.

        Raises:
            UsageError: the watch has not begun.
        """
        if self._joined is not None:
            self._joined.check_next_step()
        elif self._running is not None:
            self._running.sampling.ask()
        elif self._report is None:
            raise UsageError("nothing is watched yet", fix="with traincheck.watch(...) as run:")

    def add(self, *subjects: Any) -> None:
        """Watch further models and optimizers, such as replaced ones.

        Raises:
            UsageError: an argument is neither.
        """
        from traincheck.collect.session.attach import WatchedObjects, attach

        more = WatchedObjects()
        more.add_all(subjects, is_strict=True)
        if self._joined is not None:
            self._joined.add(*subjects)
        elif self._running is not None:
            attach(self._running.session, more)

    def start(self) -> None:
        """Begin without a ``with`` block.

        Raises:
            UsageError: it has begun already, or an option or object is not usable.
            OutputError: the trace cannot be written.
            LaunchError: this system is not Linux.
        """
        if self.is_active:
            raise UsageError("this watch has begun already", fix="make another one")
        refuse_other_systems()
        self._report = None
        if CURRENT.session is not None:
            self._join()
            return
        from traincheck.collect.session.attach import WatchedObjects, optimizers_of

        subjects = WatchedObjects()
        subjects.add_all(self._subjects(), is_strict=True)
        self._given = ()
        self._refs = [weakref.ref(one) for one in (*subjects.models, *subjects.optimizers)]
        if self._seeks and not subjects.optimizers:
            subjects.add_all(optimizers_of(subjects.models), is_strict=True)
        try:
            self._running = _Running(self._options, subjects)
        except TraincheckError:
            raise
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            text = f"nothing was watched: {type(error).__name__}: {error}"
            _logger.warning("traincheck: %s", text, exc_info=error)
            self._report = _nothing(text)
            return
        CURRENT.watch = self

    def stop(self) -> None:
        """End: restore the originals, and conclude the report. Does nothing if it has ended."""
        running, joined = self._running, self._joined
        self._running = self._joined = None
        if joined is not None:
            self._report = joined.report()
        if running is not None:
            CURRENT.watch = None
            self._report = running.end()

    def _subjects(self) -> list[Any]:
        found = (ref() for ref in self._refs)
        return [*self._given, *(one for one in found if one is not None)]

    def _join(self) -> None:
        outer = CURRENT.watch
        if isinstance(outer, Watch):
            self._joined = outer
            outer.add(*self._subjects())
            return
        self._report = _nothing("nothing was watched: the launcher records this process already")

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function: watch each call, and models and optimizers among its arguments."""
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or not callable(function)
        ):
            raise UsageError(
                f"{function!r} cannot be watched: a call of it does not train",
                fix="decorate the function that holds the training loop",
            )

        @functools.wraps(function)
        def watched(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            from traincheck.collect.session.attach import WatchedObjects

            passed = WatchedObjects()
            passed.add_all([*args, *kwargs.values()], is_strict=False)
            subjects = [*self._subjects(), *passed.models, *passed.optimizers]
            with Watch(subjects, self._options) as run:
                watched.run = run  # type: ignore[attr-defined]  # of the last call
                return function(*args, **kwargs)

        return watched

    def __str__(self) -> str:
        """The report as text."""
        if not self.is_active and self._report is None:
            return "a watch that has not begun"
        text = io.StringIO()
        write_text(self.report(), text)
        return text.getvalue()


class _Running(Listener):
    """The session of an active watch, and its engine."""

    def __init__(self, options: Options, subjects: WatchedObjects) -> None:
        from traincheck.collect.session.attach import attach
        from traincheck.collect.session.session import Session

        program = program_in(sys.argv[:1])
        config = load_config()
        self.engine = make_engine(
            options.invariants,
            rules=options.rules,
            select=options.select,
            ignore=options.ignore,
            config=config,
            sources=SourceFiles(os.getcwd, trusted_folders(script=program)),
            program=lambda: program,
        )
        self._pid = os.getpid()
        self._keeps = options.output is not None
        self._directory = _directory(options.output)
        self._clean = weakref.finalize(self, _remove, self._directory, self._pid, self._keeps)
        self.has_error = False
        self.counts = dict.fromkeys(SEVERITIES, 0)
        self._first_error = ""
        self._reader = PollReader(self._directory)
        self._following = Following(self.engine, self._reader, [self])
        settings = Settings(
            directory=str(self._directory),
            run_id=self._directory.name,
            needs=self.engine.needs,
            fold=not options.invariants,
            every=options.every,
            warmup=options.warmup,
            probe=options.probe,
        )
        self.session: Session = Session(settings)
        self.sampling = OnDemand(options.every, options.warmup, options.limit)
        self.session.sampling = self.sampling
        self.session.hooks.after_step.add(self._after_step)
        if options.halt:
            self.session.hooks.after_step.add(self._halt)
            self.session.hooks.before_save.add(self._halt_before_save)
        self._notes: list[str] = []
        self._is_recording = True
        self._skipped = 0
        self._notifier = make_notifier(
            options.to, config, self._directory, trace=str(self._directory) if self._keeps else ""
        )
        try:
            self.session.start()
            self._is_recording = self.session.recording.on
            attach(self.session, subjects)
        except BaseException:
            self.session.stop()
            self._clean()
            if self._notifier is not None:
                self._notifier.close()
            raise

    def end(self) -> Report:
        """Stop recording and conclude."""
        self.session.stop()
        if os.getpid() == self._pid:
            self._feed(self._reader.rest)
        report = self._following.finish()
        if self._notifier is not None and os.getpid() == self._pid:
            self._notifier.report(report)
            self._notifier.close()
        self._clean()
        return report

    def settle(self) -> None:
        """End the step if its iteration is complete, and so check it."""
        from traincheck.collect.session.attach import settle

        settle(self.session)

    def _halt(self) -> None:
        if self.has_error and os.getpid() == self._pid:
            raise TrainingHalted(self._first_error)

    def _halt_before_save(self) -> None:
        self.settle()
        self._halt()

    def finding(self, finding: Finding) -> None:
        """Log it, and send it to the receivers."""
        if finding.severity == "error" and not self.has_error:
            self.has_error, self._first_error = True, one_line(finding)
        self.counts[finding.severity] += 1
        if self._notifier is not None and os.getpid() == self._pid:
            self._notifier.finding(finding, self._following.so_far())
        fix = f"\n  fix: {finding.fix}" if finding.fix else ""
        rank = f" rank {finding.rank}" if finding.rank else ""
        text = f"traincheck:{rank} {one_line(finding)}{fix}"
        _logger.log(_LEVELS[finding.severity], "%s", text)

    def _after_step(self) -> None:
        was_recorded, self._is_recording = self._is_recording, self.session.recording.on
        self._skipped = 0 if was_recorded else self._skipped + 1
        if self._skipped % _SKIPPED_STEPS:
            return  # it left only its end
        if os.getpid() != self._pid:  # a forked child that trains: another run
            return
        self._feed(self._reader.new)
        em = self.session.local.em
        if em is not None and not self._keeps:
            self._reader.drop(f"p{self._pid}-t{em.thread}", _FILE_BYTES, em.empty_file)

    def _feed(self, read: Callable[[], Iterable[Any]]) -> None:
        if self._notes:
            return
        try:
            self._following.feed(read())
        except Exception as error:  # training must go on whatever we got wrong
            self._give_up(f"{type(error).__name__}: {error}")
            give_back(error)
            _logger.warning("traincheck: %s", self._notes[0], exc_info=error)
        except BaseException as error:  # an interrupt: events may be lost, so checking stops
            self._give_up(type(error).__name__)
            raise

    def _give_up(self, reason: str) -> None:
        self._notes.append(f"checking stopped with {reason}")
        self._reader.notes.extend(self._notes)


def _directory(output: str | Path | None) -> Path:
    """An empty folder for the trace."""
    try:
        if output is None:
            return Path(tempfile.mkdtemp(prefix="traincheck-"))
        directory = Path(output).absolute()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.glob(EVENT_GLOB)):
            raise OutputError(f"{output} already holds a trace", fix="give a new folder as output")
    except OSError as error:
        give_back(error)
        raise OutputError(
            f"cannot write the trace to {output or tempfile.gettempdir()}: {error.strerror}",
            fix="give output= a folder that can be written",
        ) from error
    return directory


def _nothing(reason: str) -> Report:
    """The report if nothing was watched."""
    return replace(make_engine(rules=False).so_far(), notes=[reason])


def _remove(directory: Path, pid: int, is_kept: bool) -> None:
    if not is_kept and os.getpid() == pid:  # not in a forked child
        shutil.rmtree(directory, ignore_errors=True)


@overload
def watch(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def watch(
    *subjects: Any,
    every: int = ...,
    warmup: int = ...,
    limit: int | None = ...,
    invariants: Sequence[str | Path] = ...,
    rules: bool = ...,
    select: Sequence[str] = ...,
    ignore: Sequence[str] = ...,
    output: str | Path | None = ...,
    halt: bool = ...,
    probe: bool = ...,
    to: Sequence[str] = ...,
) -> Watch: ...
def watch(*subjects: Any, **options: Any) -> Any:
    """Check training in this process: ``with traincheck.watch(model, optimizer) as run:``.

    Findings are logged to the logger "traincheck" when the step that shows them has ended. At the
    end of the block everything is restored. As a decorator, ``@traincheck.watch`` or
    ``@traincheck.watch(every=10)``, it watches each call of a function.

    Args:
        *subjects: models and optimizers that exist already, also in lists. Without an optimizer,
            those of the models are found. Objects created inside the block are watched too.
        **options: the fields of `Options`: every, warmup, limit, invariants, rules, select,
            ignore, output, halt, probe, to.

    Raises:
        UsageError: an option or a code is not usable.
        TrainingHalted: with ``halt``, from within the block, at a finding of severity error.
    """
    chosen = Options.of(options)
    if len(subjects) == 1 and isinstance(subjects[0], FunctionType):
        return Watch((), chosen)(subjects[0])
    return Watch(subjects, chosen)
