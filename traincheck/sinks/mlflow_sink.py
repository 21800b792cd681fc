"""MLflow: numbers as metrics, the result as tags, the whole report as artifacts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import ClassVar

from traincheck.metrics import trackers
from traincheck.packages import imported
from traincheck.sinks.base import Message, Sink, keyed

_TAG = 4_000  # characters
_FOLDER = "traincheck"


class MLflow(Sink):
    """A run of MLflow: a new one, or the one of the training.

    Args:
        uri: of the tracking server, or a folder; empty for that of the environment.
        experiment: its name; empty for that of the environment.
        run_id: of the run to add to; empty for a new run.

    Raises:
        MissingDependencyError: mlflow is not installed.
    """

    target: ClassVar[str] = "uri"
    patience_s: ClassVar[float] = 30.0

    def __init__(self, uri: str = "", experiment: str = "", run_id: str = "") -> None:
        os.environ.pop("MLFLOW_RUN_ID", None)  # that of the training, which also ends it
        imported("mlflow", "MLflow", "mlflow-skinny")
        if uri.startswith(("file:", "/", ".")):  # a folder was asked for; MLflow 3 refuses it
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._run = trackers.MLflow(uri or None, experiment or None, run_id=run_id, is_late=True)
        self._failed = False

    def finding(self, message: Message) -> None:
        """Write the number of findings so far."""
        self._log(message, message["counts"], message["finding"]["first_step"] or 0)

    def report(self, message: Message) -> None:
        """Write the numbers and tags of the report, and the report as JSON and as Markdown."""
        summary = message["summary"]
        self._failed = bool(message["exit_status"])
        self._log(message, {**summary, **message["counts"]}, summary["steps"])
        run_id, client = self._run.run_id, self._run.client
        first = message["report"]["first_violation"]
        for name, value in {
            "traincheck.conclusion": message["conclusion"],
            "traincheck.exit_status": str(message["exit_status"]),
            "traincheck.trace": message["run"]["trace"],
            **({"traincheck.first_finding": f"{first['code']} {first['title']}"} if first else {}),
        }.items():
            client.set_tag(run_id, name, value[:_TAG])
        document = json.dumps(message["report"], indent=2)
        client.log_text(run_id, document, f"{_FOLDER}/report.json")
        client.log_text(run_id, message["markdown"], f"{_FOLDER}/report.md")

    def close(self) -> str:
        """End the run, if it was begun here."""
        if not self._run.run_id:
            return ""
        self._run.close("FAILED" if self._failed else "FINISHED")
        return f"run {self._run.run_id} in {self._run.uri}"

    def _log(self, message: Message, numbers: Mapping[str, int], step: int) -> None:
        self._run.begin(message["run"]["id"])
        self._run.log(keyed(numbers), step, int(time.time() * 1000))
