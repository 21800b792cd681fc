"""Files get lines or numbers: a log of Python's logging, a text file for Prometheus."""

from __future__ import annotations

import logging
import logging.config
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from traincheck.errors import UsageError
from traincheck.receivers.base import Message, Receiver
from traincheck.schema.files import parse_json, read_regular

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_NAME = "traincheck"


class Log(Receiver):
    """The logger ``traincheck``. A record has the document of the finding as ``record.finding``.

    Args:
        file: to which lines are appended.
        config: configuration of logging: JSON for ``logging.config.dictConfig``, else the format of
            ``fileConfig``. It replaces ``file``.
    """

    target: ClassVar[str] = "file"

    def __init__(self, file: str = "traincheck.log", config: str = "") -> None:
        self._logger = logging.getLogger(_NAME)
        self._logger.setLevel(logging.INFO)
        if config.endswith(".json"):
            logging.config.dictConfig(parse_json(read_regular(config)))
        elif config:
            logging.config.fileConfig(config, disable_existing_loggers=False)
        else:
            handler = logging.FileHandler(file, encoding="utf-8")
            handler.setFormatter(logging.Formatter(_FORMAT))
            self._logger.addHandler(handler)
        logging.raiseExceptions = False

    def finding(self, message: Message) -> None:
        """Log a finding at its severity, on one line."""
        level = _LEVELS[message["finding"]["severity"]]
        text = message["text"].replace("\n", "; ")
        self._logger.log(level, "%s", text, extra={"finding": message["finding"]})

    def withdrawn(self, message: Message) -> None:
        """Log that a finding no longer counts."""
        self._logger.info("%s", message["text"])

    def report(self, message: Message) -> None:
        """Log the conclusion, as an error if the exit status is not 0."""
        level = logging.ERROR if message["exit_status"] else logging.INFO
        self._logger.log(level, "%s", message["result"])

    def close(self) -> str:
        """Write what the handlers hold."""
        for handler in (*self._logger.handlers, *logging.getLogger().handlers):
            handler.flush()
        return ""


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_VERDICTS = ("held", "violated", "not_triggered", "not_observable")
_HELP = {
    "findings": "Findings of the run so far, by code and severity.",
    "checks": "Checks of the run, by verdict.",
    "steps": "Training steps of the run so far.",
    "checked_steps": "Training steps that were recorded and checked.",
    "exit_status": "Exit status of the check; absent while the run goes on.",
    "finished": "1 when the run is checked, 0 while it goes on.",
}


class Prometheus(Receiver):
    """A text file in Prometheus' exposition format.

    Args:
        file: its name must end in ``.prom``, or the collector ignores it.

    Raises:
        UsageError: it does not.
    """

    target: ClassVar[str] = "file"
    takes_progress: ClassVar[bool] = True

    def __init__(self, file: str) -> None:
        self._path = Path(file)
        if self._path.suffix != ".prom":
            raise UsageError(f"{file} does not end in .prom", fix=f"name it {file}.prom")
        self._findings: dict[str, tuple[str, str]] = {}
        self._numbers: Message = {}

    def finding(self, message: Message) -> None:
        """Count a finding."""
        found = message["finding"]
        key = f"{found['id']} {found['first_step']}"
        self._findings[key] = (found["code"], found["severity"])
        self._write(message)

    def withdrawn(self, message: Message) -> None:
        """Count it no longer."""
        found = message["finding"]
        self._findings.pop(f"{found['id']} {found['first_step']}", None)
        self._write(message)

    def progress(self, message: Message) -> None:
        """Write the present numbers."""
        self._numbers = message["summary"]
        self._write(message)

    def report(self, message: Message) -> None:
        """Write the numbers of the report."""
        self._numbers = message["summary"]
        findings = message["report"]["findings"]
        self._findings = {
            str(number): (found["code"], found["severity"]) for number, found in enumerate(findings)
        }
        self._write(message)

    def _write(self, message: Message) -> None:
        text = "".join(f"{line}\n" for line in self._lines(message))
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(name, 0o644)  # the collector is another user
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise

    def _lines(self, message: Message) -> Iterator[str]:
        run = {"program": message["run"]["program"], "run": message["run"]["id"]}
        yield from _head("findings")
        counts = Counter(self._findings.values())
        for (code, severity), count in sorted(counts.items()):
            yield _sample("findings", {**run, "code": code, "severity": severity}, count)
        numbers = self._numbers
        if numbers:
            yield from _head("checks")
            for verdict in _VERDICTS:
                yield _sample("checks", {**run, "verdict": verdict}, numbers[verdict])
            for name in ("steps", "checked_steps"):
                yield from _head(name)
                yield _sample(name, run, numbers[name])
        status = message.get("exit_status")
        if status is not None:
            yield from _head("exit_status")
            yield _sample("exit_status", run, status)
        yield from _head("finished")
        yield _sample("finished", run, int(status is not None))


def _head(name: str) -> Iterator[str]:
    yield f"# HELP traincheck_{name} {_HELP[name]}"
    yield f"# TYPE traincheck_{name} gauge"


def _sample(name: str, labels: Mapping[str, Any], value: int) -> str:
    shown = ",".join(f'{key}="{str(text).translate(_ESCAPES)}"' for key, text in labels.items())
    return f"traincheck_{name}{{{shown}}} {value}"
