"""Record programs for `traincheck diff`: one twice, or one against a recorded run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import TraceFormatError, TraincheckError, UsageError

from ._broken_pipe import ignore_closed_stderr, line_start

if TYPE_CHECKING:
    from traincheck.collect.launch.settings import Settings
    from traincheck.collect.launch.signals import ProgramStopper
    from traincheck.diff.difference import Difference

COULD_NOT_RUN = 125  # `git bisect run` skips a commit with this status
_TRACES = "traces"
_FIRST_LOOK_S = 1.0
_LATEST_LOOK_S = 30.0
_SHARE = 5  # a look waits at least this many times as long as the last one took
Compare = Callable[[str, str], "Difference"]


def run_twice(command: Sequence[str], compare: Compare) -> Difference:
    """Record a program twice, and compare the two runs.

    Raises:
        UsageError: there is no program.
        TraincheckError: it could not be started, or nothing was recorded.
    """
    _check(command, "traincheck diff --twice")
    folders = []
    for number in (1, 2):
        folder = _new_folder(command, f"-{number}")
        _record(command, _settings(folder), None)
        folders.append(folder)
    _say(f"traces in {folders[0]} and {folders[1]}")
    return replace(compare(*map(str, folders)), labels=("run 1", "run 2"))


def run_against(
    reference: str, command: Sequence[str], compare: Compare, *, halts: bool
) -> tuple[Difference | None, int]:
    """Record a program, and compare it with a recorded run, while it runs with ``halts``.

    Returns:
        The difference, None if nothing was recorded; and the exit status of the program, 0 if it
        was stopped at a difference.

    Raises:
        UsageError: there is no program.
        LaunchError: it could not be started.
    """
    _check(command, "traincheck diff A --against")
    folder = _new_folder(command, "")
    watcher = _Watcher(reference, folder, compare) if halts else None
    status = _record(command, _settings(folder, reference), watcher)
    if watcher is not None and watcher.is_stopped:
        status = 0
    try:
        found = compare(reference, str(folder))
    except TraceFormatError as error:
        _say(error.message)
        return None, status
    _say(f"trace in {folder}")
    return found, status


class _Watcher:
    """Compares a run while it is recorded, and stops the program at the first difference."""

    def __init__(self, reference: str, folder: Path, compare: Compare) -> None:
        self.is_stopped = False
        self._reference, self._folder, self._compare = reference, folder, compare
        self._ended = threading.Event()
        self._stop: ProgramStopper | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="traincheck-diff")

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        from traincheck.collect.launch.signals import ProgramStopper

        self._stop = ProgramStopper(process, self._folder)
        self._thread.start()

    def finish(self) -> None:
        """The program has ended."""
        self._ended.set()
        if self._stop is not None:
            self._thread.join()

    def _watch(self) -> None:
        wait_s = _FIRST_LOOK_S
        while not self._ended.wait(wait_s):
            began = time.monotonic()
            if self._differs():
                self.is_stopped = True
                assert self._stop is not None
                self._stop()
                return
            wait_s = max(_FIRST_LOOK_S, min(_LATEST_LOOK_S, _SHARE * (time.monotonic() - began)))

    def _differs(self) -> bool:
        try:
            return self._compare(self._reference, str(self._folder)).first is not None
        except TraincheckError:  # nothing is recorded yet
            return False


def _record(command: Sequence[str], settings: Settings, watcher: _Watcher | None) -> int:
    from traincheck.collect.launch.launcher import launch

    try:
        outcome = launch(command, settings, on_start=None if watcher is None else watcher.start)
    finally:
        if watcher is not None:
            watcher.finish()
    if outcome.exit_status and not (watcher and watcher.is_stopped):
        _say(f"the program ended with exit status {outcome.exit_status}")
    return outcome.exit_status


def _settings(folder: Path, reference: str | None = None) -> Settings:
    """The view in which the reference was recorded; else the view of comparisons, with outputs."""
    from traincheck.collect.launch.settings import Settings
    from traincheck.schema.claims import own_needs
    from traincheck.schema.comparison.diff_view import DIFF, DIFF_NEEDS
    from traincheck.store.reader import TraceReader

    common: dict[str, Any] = {"directory": str(folder.absolute()), "run_id": folder.name}
    if reference is None:
        return Settings(
            **common, view=DIFF, outputs="all", whole=True, source=True, needs=DIFF_NEEDS
        )
    manifest = TraceReader(reference).manifest
    known = dict(manifest.settings) if manifest is not None else {}
    needs = known.pop("needs", None)
    names = ("level", "every", "warmup", "whole", "fold", "view", "outputs", "sketch")
    chosen = {name: known[name] for name in names if name in known}
    packages = tuple(known.get("instrument", ()))
    own = None if needs is None else own_needs(needs)
    return Settings(**common, **chosen, instrument=packages, needs=own)


def _new_folder(command: Sequence[str], suffix: str) -> Path:
    from traincheck.collect.launch.launcher import new_run_id

    return Path(_TRACES) / f"{new_run_id(command)}{suffix}"


def _check(command: Sequence[str], example: str) -> None:
    from traincheck.collect.launch.launcher import check_command

    if not command:
        raise UsageError("no program to run", fix=f"{example} -- python train.py")
    check_command(command, example=f"{example} --")


def _say(text: str) -> None:
    with ignore_closed_stderr():
        click.echo(f"{line_start(sys.stderr)}traincheck: {text}", err=True)
