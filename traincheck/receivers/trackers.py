"""Experiment trackers get numbers and texts: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from traincheck.metrics import trackers
from traincheck.packages import imported
from traincheck.receivers.base import Message, Receiver, keyed


class TensorBoard(Receiver):
    """Event files.

    Args:
        directory: where to write them.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    target: ClassVar[str] = "directory"

    def __init__(self, directory: str = "runs/traincheck") -> None:
        self._directory = directory
        self._files = trackers.TensorBoard(directory)

    def finding(self, message: Message) -> None:
        """Write the finding as text, and the number of findings so far."""
        found = message["finding"]
        step = found["first_step"] or 0
        self._files.log(keyed(message["counts"]), step)
        text = message["text"].replace("\n", "\n\n")
        self._files.text(f"traincheck/{found['code']}", text, step)

    def report(self, message: Message) -> None:
        """Write the numbers of the report, and all of it as text."""
        step = message["summary"]["steps"]
        self._files.log(keyed({**message["counts"], **message["summary"]}), step)
        self._files.log(keyed({"exit_status": message["exit_status"]}), step)
        self._files.text("traincheck/report", message["markdown"], step)

    def close(self) -> str:
        """Write what is left."""
        self._files.close()
        return f"tensorboard --logdir {self._directory}"


_TAG = 4_000  # characters
_FOLDER = "traincheck"


class MLflow(Receiver):
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


_COLUMNS = ("code", "severity", "first_step", "title", "likely_cause", "fix", "where")
_STEP = "traincheck/step"


class WandB(Receiver):
    """A run of Weights & Biases: a new one, or the one of the training.

    Args:
        project: ``project`` or ``entity/project``; empty for that of the environment.
        run_id: of the run to add to; empty for a new run.
        mode: "online", "offline"; empty for that of the environment.
        directory: for the files of W&B; empty for that of the environment.

    Raises:
        MissingDependencyError: wandb is not installed.
    """

    target: ClassVar[str] = "project"
    patience_s: ClassVar[float] = 60.0  # the rest is uploaded

    def __init__(
        self, project: str = "", run_id: str = "", mode: str = "", directory: str = ""
    ) -> None:
        for name in ("WANDB_RUN_ID", "WANDB_RESUME"):  # those of the training, which also writes
            os.environ.pop(name, None)
        self._wandb = imported("wandb", "Weights & Biases")
        entity, _, name = project.rpartition("/")
        settings: dict[str, Any] = {
            "entity": entity,
            "project": name,
            "id": run_id,
            "resume": "allow" if run_id else "",
            "mode": mode,
            "dir": directory,
            "job_type": "" if run_id else "traincheck",
        }
        self._settings = {key: value for key, value in settings.items() if value}
        self._run: Any = None

    def finding(self, message: Message) -> None:
        """Send an alert, and the number of findings so far as a curve over steps."""
        found, run = message["finding"], self._begun(message)
        run.log(
            {
                _STEP: found["first_step"] or 0,
                **{f"traincheck/{level}": number for level, number in message["counts"].items()},
            }
        )
        levels = self._wandb.AlertLevel
        level = {"error": levels.ERROR, "warning": levels.WARN}.get(found["severity"], levels.INFO)
        title = f"{found['code']} {found['severity']}: {found['title']}"
        run.alert(title=title, text=message["text"], level=level)

    def report(self, message: Message) -> None:
        """Write the numbers of the report to the summary, and a table of all findings."""
        run = self._begun(message)
        findings = message["report"]["findings"]
        table = self._wandb.Table(columns=list(_COLUMNS))
        for found in findings:
            table.add_data(*(_cell(found[name]) for name in _COLUMNS))
        if findings:
            run.log({"traincheck/findings": table})
        run.summary.update(
            {
                **{f"traincheck/{key}": value for key, value in message["summary"].items()},
                **{f"traincheck/{level}": number for level, number in message["counts"].items()},
                "traincheck/exit_status": message["exit_status"],
                "traincheck/conclusion": message["conclusion"],
            }
        )

    def close(self) -> str:
        """Upload what is left."""
        if self._run is None:
            return ""
        seen = self._run.url or f"wandb sync {self._run.dir.removesuffix('/files')}"
        self._run.finish()
        self._wandb.teardown()  # its service writes the rest of the files before it ends
        return str(seen)

    def _begun(self, message: Message) -> Any:
        if self._run is None:
            name = {} if "id" in self._settings else {"name": message["run"]["id"]}
            config = {"traincheck": message["run"]}
            self._run = self._wandb.init(config=config, **name, **self._settings)
            self._run.define_metric(_STEP, hidden=True)
            self._run.define_metric("traincheck/*", step_metric=_STEP)
        return self._run


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['file']}:{value['line']}"
    return "" if value is None else str(value)
