"""Stop the program of a run: request the end of its processes, and kill those that remain.

Signals only processes that have the settings of this run; makes no decisions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

from traincheck.collect.launch.run_manifest import find_processes
from traincheck.schema.layout import HALTED
from traincheck.schema.reading import read_regular

GRACE_S = 10.0


class ProgramStopper:
    """Ends a program and all processes of its run that left events.

    Args:
        process: the program.
        directory: of the run.
        grace_s: seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], directory: Path, grace_s: float = GRACE_S
    ) -> None:
        self._process = process
        self._directory = directory
        self._grace_s = grace_s
        self._is_called = False

    def __call__(self) -> None:
        """Begin; returns at once. A second call does nothing."""
        if self._is_called:
            return
        self._is_called = True
        with contextlib.suppress(OSError):  # ranks that wait in a collective are meaningless then
            (self._directory / HALTED).touch()
        self._signal(signal.SIGTERM)
        later = threading.Timer(self._grace_s, self._signal, [signal.SIGKILL])
        later.daemon = True
        later.start()

    def _signal(self, number: int) -> None:
        # A shell or a launcher may end without its children, so these are signalled directly.
        for known in find_processes(self._directory):
            pid = known["pid"]
            if pid != self._process.pid and self._is_ours(pid):
                _kill(pid, number)
        self._process.send_signal(number)  # does nothing if it has been waited for

    def _is_ours(self, pid: int) -> bool:
        """Whether this process id still belongs to the run: ids are reused."""
        try:
            environ = read_regular(f"/proc/{pid}/environ")
        except OSError:
            return False
        return os.fsencode(str(self._directory)) in environ


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has ended by itself
        return
