"""Log findings and the conclusion with Python's logging."""

from __future__ import annotations

import logging
import logging.config
from typing import ClassVar

from traincheck.schema.json_text import parse_json
from traincheck.schema.reading import read_regular
from traincheck.sinks.base import Message, Sink

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_NAME = "traincheck"


class Log(Sink):
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
