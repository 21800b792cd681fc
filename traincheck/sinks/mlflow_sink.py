"""MLflow: numbers as metrics, the result as tags, the whole report as artifacts."""

from __future__ import annotations

import json
import os
import time
from typing import Any, ClassVar

from traincheck.sinks.base import Message, Sink, imported

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
        mlflow = imported("mlflow", "MLflow", "mlflow-skinny")
        self._metric = imported("mlflow.entities", "MLflow", "mlflow-skinny").Metric
        if uri.startswith(("file:", "/", ".")):  # a folder was asked for; MLflow 3 refuses it
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        if uri:
            mlflow.set_tracking_uri(uri)
        if experiment:
            mlflow.set_experiment(experiment)
        self._mlflow, self._uri = mlflow, mlflow.get_tracking_uri()
        self._client = mlflow.MlflowClient()
        self._run_id, self._is_own = run_id, not run_id
        self._failed = False

    def finding(self, message: Message) -> None:
        """Write the number of findings so far."""
        step = message["finding"]["first_step"] or 0
        counts = {f"traincheck/{level}": number for level, number in message["counts"].items()}
        self._log(message, counts, step)

    def report(self, message: Message) -> None:
        """Write the numbers and tags of the report, and the report as JSON and as Markdown."""
        summary = message["summary"]
        numbers = {f"traincheck/{key}": value for key, value in summary.items()}
        counts = {f"traincheck/{level}": number for level, number in message["counts"].items()}
        self._failed = bool(message["exit_status"])
        self._log(message, {**numbers, **counts}, summary["steps"])
        run_id = self._begun(message)
        for name, value in self._tags(message).items():
            self._client.set_tag(run_id, name, value[:_TAG])
        document = json.dumps(message["report"], indent=2)
        self._client.log_text(run_id, document, f"{_FOLDER}/report.json")
        self._client.log_text(run_id, message["markdown"], f"{_FOLDER}/report.md")

    def close(self) -> str:
        """End the run, if it was begun here."""
        if not self._run_id:
            return ""
        if self._is_own:
            self._mlflow.end_run("FAILED" if self._failed else "FINISHED")
        return f"run {self._run_id} in {self._uri}"

    def _tags(self, message: Message) -> dict[str, str]:
        first = message["report"]["first_violation"]
        return {
            "traincheck.conclusion": message["conclusion"],
            "traincheck.exit_status": str(message["exit_status"]),
            "traincheck.trace": message["run"]["trace"],
            **({"traincheck.first_finding": f"{first['code']} {first['title']}"} if first else {}),
        }

    def _log(self, message: Message, numbers: dict[str, int], step: int) -> None:
        now_ms = int(time.time() * 1000)
        found = [self._metric(key, float(value), now_ms, step) for key, value in numbers.items()]
        self._client.log_batch(self._begun(message), metrics=found)

    def _begun(self, message: Message) -> Any:
        if not self._run_id:
            run = self._mlflow.start_run(run_name=message["run"]["id"])
            self._run_id = run.info.run_id
        return self._run_id
