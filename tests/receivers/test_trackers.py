"""W&B, MLflow and TensorBoard, with the real libraries and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.metrics.test_formats import wandb_records
from tests.receivers.conftest import Messages
from traincheck.receivers.trackers import MLflow, TensorBoard, WandB
from traincheck.schema.findings import Report


def records_of(folder: Path) -> list[Any]:
    """The records of one offline run."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    found = []
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        found.append(record)
    return found


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(
    messages: Messages, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_RUN_ID", "training")
    receiver = WandB("team/silent-bugs", mode="offline", directory=str(tmp_path))
    assert messages.send(receiver).startswith("wandb sync ")
    records = records_of(tmp_path)
    (run,) = [one.run for one in records if one.WhichOneof("record_type") == "run"]
    assert (run.project, run.entity, run.display_name) == ("silent-bugs", "team", "nightly-7")
    assert run.run_id != "training"
    (alert,) = [one.alert for one in records if one.WhichOneof("record_type") == "alert"]
    assert alert.title.startswith("TC201 error: Gradients are not cleared")
    assert alert.level == "ERROR"
    assert f"fix: {report.findings[0].fix}" in alert.text
    curve = [
        {item.nested_key[0] if item.nested_key else item.key: item.value_json for item in one.item}
        for one in (one.history for one in records)
        if one.item
    ]
    assert curve[0]["traincheck/step"] == "1"
    assert curve[0]["traincheck/error"] == "1"
    assert "traincheck/findings" in curve[-1]
    summary: dict[str, Any] = {}
    for record in records:
        for item in record.summary.update:
            summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    assert summary["traincheck/steps"] == report.steps
    assert summary["traincheck/exit_status"] == report.exit_status == 1
    assert summary["traincheck/conclusion"].startswith("traincheck: 1 finding")


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_findings_has_no_alert(tmp_path, monkeypatch, messages: Messages) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    receiver = WandB(mode="offline", directory=str(tmp_path))
    healthy = {**messages.report, "report": {**messages.report["report"], "findings": []}}
    receiver.report(healthy)
    receiver.close()
    kinds = {record.WhichOneof("record_type") for record in records_of(tmp_path)}
    assert "summary" in kinds
    assert "alert" not in kinds


@pytest.mark.filterwarnings("ignore")
def test_mlflow_file_store(
    messages: Messages, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_RUN_ID", "training")
    folder = (tmp_path / "store").as_uri()
    note = messages.send(MLflow(folder, experiment="silent-bugs"))
    client = mlflow.MlflowClient(folder)
    experiment = client.get_experiment_by_name("silent-bugs")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in note
    assert (run.info.run_name, run.info.status) == ("nightly-7", "FAILED")
    assert run.data.metrics["traincheck/error"] == 1
    assert run.data.metrics["traincheck/held"] == sum(
        verdict.value == "held" for verdict in report.verdicts.values()
    )
    assert run.data.tags["traincheck.exit_status"] == "1"
    assert run.data.tags["traincheck.first_finding"].startswith("TC201 Gradients are not cleared")
    history = client.get_metric_history(run.info.run_id, "traincheck/error")
    assert [one.step for one in history] == [1, report.steps]
    file = client.download_artifacts(run.info.run_id, "traincheck/report.json", str(tmp_path))
    assert json.loads(Path(file).read_text()) == messages.report["report"]
    page = client.download_artifacts(run.info.run_id, "traincheck/report.md", str(tmp_path))
    assert Path(page).read_text() == messages.report["markdown"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_adds_to_a_run_and_does_not_end_it(tmp_path, monkeypatch, messages) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(folder)
    training = client.create_run(client.create_experiment("e"))
    messages.send(MLflow(folder, run_id=training.info.run_id))
    found = client.get_run(training.info.run_id)
    assert found.data.tags["traincheck.exit_status"] == "1"
    assert found.info.status == "RUNNING"


def test_tensorboard(messages: Messages, report: Report, tmp_path: Path) -> None:
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name).EventAccumulator
    messages.send(TensorBoard(str(tmp_path)))
    found = accumulator(str(tmp_path))
    found.Reload()
    errors = found.Scalars("traincheck/error")
    assert [(one.step, one.value) for one in errors] == [(1, 1.0), (report.steps, 1.0)]
    assert found.Scalars("traincheck/exit_status")[0].value == 1.0
    texts = found.SummaryMetadata("traincheck/report")
    assert texts.plugin_data.plugin_name == "text"
    (text,) = found.Tensors("traincheck/report")
    assert text.tensor_proto.string_val[0].decode() == messages.report["markdown"]
    (finding,) = found.Tensors("traincheck/TC201")
    assert finding.step == 1
    assert report.findings[0].fix in finding.tensor_proto.string_val[0].decode()
