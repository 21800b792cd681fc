"""Run a command for each finding: ``--on-finding COMMAND``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import IO, ClassVar

from traincheck.errors import UsageError
from traincheck.receivers.base import Message, Receiver
from traincheck.schema.words import printable

_TIMEOUT_S = 60.0
_MOST_READ = 100_000  # bytes of stderr
_MOST_SAID = 300  # characters of stderr
_OF_SHELLS = (">", ">>", "<", "|", "||", "&&", ";", "&", "2>", "2>&1")
_LONGEST = 1_000  # characters of a variable of the environment


class Command(Receiver):
    """A command. Texts of the finding are in its environment and its stdin, never in its line.

    Args:
        line: words as a shell splits them; no shell is used.
        seconds: after these, the command and its children are killed.

    Raises:
        UsageError: the line is empty, or a quotation mark is missing.
    """

    target: ClassVar[str] = "line"
    patience_s: ClassVar[float] = 30.0

    def __init__(self, line: str, seconds: float = _TIMEOUT_S) -> None:
        self._words = words_of(line)
        self._seconds = seconds

    def finding(self, message: Message) -> None:
        """Run the command.

        Raises:
            OSError: it cannot be run, fails, or takes too long.
        """
        with tempfile.TemporaryFile() as told:  # not a pipe, which a process left behind holds open
            status = self._run(message, told)
            if status:
                told.seek(0)
                # The status, the last line of stderr, and that no shell read the line.
                said = told.read(_MOST_READ)
                lines = said.decode(errors="replace").strip().split("\n")
                why = f": {printable(lines[-1])[:_MOST_SAID]}" if lines[-1] else ""
                odd = [word for word in self._words if word in _OF_SHELLS]
                hint = f"; no shell is used, so {odd[0]} is an argument: sh -c '...'" if odd else ""
                raise ChildProcessError(f"{self._words[0]} ended with status {status}{why}{hint}")

    def _run(self, message: Message, told: IO[bytes]) -> int:
        process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=told,
            env={**os.environ, **_variables(message)},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(message).encode(), timeout=self._seconds)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            taken = f"{self._words[0]} took more than {self._seconds:g} s"
            raise TimeoutError(taken) from error
        return process.returncode


def words_of(line: str) -> list[str]:
    """The words of a command line.

    Raises:
        UsageError: there is none, or a quotation mark is missing.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"--on-finding {line!r}: {error}", fix="close the quotes") from error
    if not words:
        raise UsageError("--on-finding is empty", fix="name a program and its arguments")
    return words


def _variables(message: Message) -> dict[str, str]:
    finding, place = message["finding"], message["finding"]["where"]
    step = finding["first_step"]
    found = {
        "CODE": finding["code"],
        "SEVERITY": finding["severity"],
        "TITLE": finding["title"],
        "STEP": "" if step is None else str(step),
        "FIX": finding["fix"],
        "WHERE": f"{place['file']}:{place['line']}" if place else "",
        "TEXT": message["text"],
        "TRACE": message["run"]["trace"],
        "PROGRAM": message["run"]["program"],
    }
    return {
        f"TRAINCHECK_{name}": (text or "").replace("\0", "")[:_LONGEST]
        for name, text in found.items()
    }
