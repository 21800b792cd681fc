"""The terminal view: follows the files of a run, draws the screen, and obeys the keys.

One thread does all of it. While there is nothing to read, it waits for a key.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live

from traincheck.api import program_of
from traincheck.errors import TraceFormatError
from traincheck.live.checked import CheckNotes
from traincheck.live.keyboard import Keyboard, is_quit, obey
from traincheck.live.light import LIGHT, LightState
from traincheck.live.screen import Choice, Scene, screen
from traincheck.live.status import RunStatus, run_status
from traincheck.live.timeline import ASCII, BLOCKS, NEWS, LiveTimeline
from traincheck.metrics.trace import view_of
from traincheck.store.lines import WHOLE
from traincheck.store.tail import TailReader

if TYPE_CHECKING:
    from traincheck.check.engine import Engine
    from traincheck.schema.events import Event

_POLL_S = 0.4
_STATUS_S = 0.5
_PATIENCE_S = 1.0  # without a screen, while there is more to read than fits between two reads
_TOGETHER = 2000  # events before the clock is read


class Viewer:
    """Shows one run.

    Args:
        directory: of the run.
        console: what is written to.
        engine: checks the run here; None to show what its live check has found.
        keyboard: where keys come from; None for none.
        stop: whether to end, beside the key for it.
        output: gives the last lines that the program wrote, as many as asked for.
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        directory: Path,
        console: Console,
        *,
        engine: Engine | None = None,
        keyboard: Keyboard | None = None,
        stop: Callable[[], bool] | None = None,
        output: Callable[[int], Sequence[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.choice = Choice()
        self._directory = directory
        self._console = console
        self._observe = engine.observe if engine is not None else None
        self._notes = CheckNotes(engine, directory) if engine is not None else None
        self._keyboard = keyboard or Keyboard(None)
        self._clock = clock
        self._stop = stop or (lambda: False)
        self._output = output
        self._is_quitting = False
        self._reader = TailReader(
            directory,
            stop=self._is_over,
            sleep=self._wait,
            poll_s=_POLL_S,
            decoders=LIGHT if engine is None else WHOLE,
        )
        self._timeline = LiveTimeline(view_of(self._reader.manifest, directory))
        self._status: RunStatus = run_status(directory)
        self._status_s = clock()
        self._drawn_s = -1.0
        self._live: Live | None = None

    def print_once(self) -> None:
        """Print what has been recorded up to now.

        Raises:
            TraceFormatError: there are lines, but no event.
        """
        self._is_quitting = True  # the reader delivers what is there
        for event in self._reader.events():
            self._take(event)
        self._timeline.settle()
        self._status = run_status(self._directory)
        for line in screen(self._scene(), self.choice, self._console.width):
            self._console.print(line, soft_wrap=True)

    def show(self) -> None:
        """Fill the terminal until a key ends it.

        Raises:
            TraceFormatError: there are lines, but no event.
        """
        with self._keyboard, _ending_cleanly():
            live = Live(screen=True, console=self._console, auto_refresh=False)
            with live:
                self._live = live
                self._draw()
                self._follow()
                while not self._is_over():
                    self._wait(_POLL_S)

    def _follow(self) -> None:
        try:
            for count, event in enumerate(self._reader.events(), 1):
                self._take(event)
                if count % _TOGETHER == 0 and self._clock() >= self._drawn_s + _PATIENCE_S:
                    self._wait(0.0)
                if self._is_quitting:
                    return
        except TraceFormatError:
            if self._directory.is_dir():  # else it was removed: the screen says so
                raise
        self._timeline.settle()

    def _take(self, event: Event) -> None:
        if type(event) is LightState:
            self._timeline.enter_light(event)
            return
        self._timeline.add(event)
        if event.kind in NEWS:
            self._timeline.note(event)
        if self._observe is not None:
            self._observe(event)

    def _wait(self, seconds: float) -> None:
        """Draw, and obey the keys of the next moment."""
        self._draw()
        for key in self._keyboard.wait(seconds):
            if is_quit(key, self.choice):
                self._is_quitting = True
            obey(key, self.choice, self._timeline.columns, self._console.height)
            self._draw()

    def _is_over(self) -> bool:
        return self._is_quitting or self._stop()

    def _draw(self) -> None:
        self._drawn_s = self._clock()
        if self._live is None or self.choice.is_held:
            return
        if self._drawn_s >= self._status_s + _STATUS_S:
            self._status, self._status_s = run_status(self._directory), self._drawn_s
        width, height = self._console.size
        lines = screen(self._scene(), self.choice, width, height)
        self._live.update(Group(*lines), refresh=True)

    def _scene(self) -> Scene:
        encoding = (self._console.encoding or "").lower()
        return Scene(
            program=program_of(self._reader) or self._directory.name,
            timeline=self._timeline,
            status=self._status,
            checked=self._notes.state() if self._notes is not None else self._status.checked,
            behind=self._reader.behind,
            output=self._output(self._console.height // 4) if self._output is not None else (),
            blocks=BLOCKS if encoding.startswith("utf") else ASCII,
        )


@contextlib.contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Signals that end the program do so by an exception, so that the terminal is restored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
