"""Weights & Biases: findings as alerts, counts as curves, numbers in the summary, one table."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from traincheck.packages import imported
from traincheck.sinks.base import Message, Sink

_COLUMNS = ("code", "severity", "first_step", "title", "likely_cause", "fix", "where")
_STEP = "traincheck/step"


class WandB(Sink):
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
