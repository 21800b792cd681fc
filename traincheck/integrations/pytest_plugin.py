"""A plugin for pytest: the fixture `traincheck_run` checks the training in a test."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from traincheck.integrations.watching import Watch
    from traincheck.schema.findings import Findings, Report

_MARKER = "traincheck"
_FIXTURE = "traincheck_run"
_OWN = ("fail_on", "allow_empty", "require_steps")  # the other options are those of a watch


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(**options): options of the fixture {_FIXTURE}: those of traincheck.watch, and "
        f"{', '.join(_OWN)}",
    )


class TrainingCheck:
    """The value of the fixture `traincheck_run`: the training of this test is watched.

    The test fails at its end if there is a finding at or above ``fail_on``, or if nothing was
    checked. Models and optimizers that are made in the test are found.

    Args:
        options: those of the marker.
        folder: for traces of `launch`.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        from traincheck.config import load_config
        from traincheck.integrations.watch_options import Options
        from traincheck.integrations.watching import Watch
        from traincheck.schema.findings import Presentation

        own = {name: value for name, value in options.items() if name in _OWN}
        rest = {name: value for name, value in options.items() if name not in _OWN}
        self._presentation = Presentation(**{"fail_on": load_config().fail_on, **own})
        self._watch: Watch = Watch((), Options.of(rest))
        self._folder = folder
        self._launches = 0

    def start(self) -> None:
        """Begin to watch."""
        self._watch.start()

    def stop(self) -> None:
        """End the watch. Does nothing if it has ended."""
        self._watch.stop()

    def add(self, *subjects: Any) -> None:
        """Watch models and optimizers that fixtures made before the test.

        Raises:
            UsageError: an argument is neither.
        """
        self._watch.add(*subjects)

    @property
    def findings(self) -> Findings:
        """The findings so far."""
        return self._watch.findings

    def report(self) -> Report:
        """The present report."""
        return replace(self._watch.report(), presentation=self._presentation)

    def launch(self, *command: str | Path, timeout: float | None = None) -> dict[str, Any]:
        """Run a program with ``traincheck run``, and fail if it does not end with status 0.

        Args:
            command: a script with its arguments, or a command such as ``torchrun``.
            timeout: in seconds; None for no limit.

        Returns:
            The report, as ``--format json`` writes it.

        Raises:
            subprocess.TimeoutExpired: the program takes longer.
        """
        from traincheck.schema.files import parse_json, read_regular

        self._launches += 1
        file = self._folder / f"report-{self._launches}.json"
        trace = self._folder / f"trace-{self._launches}"
        shown = self._presentation
        words = [
            *(sys.executable, "-m", "traincheck", "run", "-o", str(trace)),
            *("--report", f"json={file}", "--fail-on", shown.fail_on),
            *(["--allow-empty"] if shown.allow_empty else []),
            *(["--require-steps", str(shown.require_steps)] if shown.require_steps else []),
            *([] if str(command[0]).endswith(".py") else ["--"]),
            *map(str, command),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        if done.returncode:
            pytest.fail(f"exit status {done.returncode}\n{done.stderr}", pytrace=False)
        found: dict[str, Any] = parse_json(read_regular(file))
        return found

    def require_success(self) -> None:
        """Conclude, and fail the test if the report asks for it."""
        from traincheck.report.text_report import write_text
        from traincheck.schema.findings import FINDINGS

        self.stop()
        report = self.report()
        if self._launches and report.exit_status != FINDINGS:
            return  # the programs were checked instead
        if report.exit_status:
            text = io.StringIO()
            write_text(report, text)
            pytest.fail(f"traincheck\n\n{text.getvalue()}", pytrace=False)


@pytest.fixture
def traincheck_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TrainingCheck]:
    """Check the training in this test; see docs/ci.md.

    ``@pytest.mark.traincheck(select=["TC2"], fail_on="error")`` sets options.
    """
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(_MARKER))):  # the nearest comes first
        options.update(marker.kwargs)
    check = TrainingCheck(options, tmp_path)
    check.start()
    try:
        yield check
    finally:
        check.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the training when the test itself has passed."""
    result = yield
    check = getattr(item, "funcargs", {}).get(_FIXTURE)
    if isinstance(check, TrainingCheck):
        check.require_success()
    return result
