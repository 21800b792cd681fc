"""End a program once a file appears in its run directory."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

_POLL_S = 0.02
_LAST_RANKS_S = 1.0  # until the other ranks, if there are any, have come as far


class StopAt:
    """Hand `start` to the launcher, and call `end` when that returns.

    Args:
        directory: of the run.
        name: of the file.
        is_on: whether to end the program at all.

    Attributes:
        has_stopped: whether it was ended.
    """

    def __init__(self, directory: Path, name: str, *, is_on: bool) -> None:
        self._directory, self._name, self._is_on = directory, name, is_on
        self._ended = threading.Event()
        self.has_stopped = False

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        if self._is_on:
            threading.Thread(target=self._wait, args=(process,), daemon=True).start()

    def end(self) -> None:
        """It has ended."""
        self._ended.set()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        from traincheck.collect.launch.run_manifest import find_processes
        from traincheck.collect.launch.signals import ProgramStopper

        while not (self._directory / self._name).exists():
            if self._ended.wait(_POLL_S):
                return
        is_alone = len(find_processes(self._directory)) <= 1
        if is_alone or not self._ended.wait(_LAST_RANKS_S):
            self.has_stopped = True
            ProgramStopper(process, self._directory)()
