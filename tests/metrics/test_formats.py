"""Metrics come back from each format as they were, and reach the trackers."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import traincheck
from traincheck.errors import TraceFormatError, UsageError
from traincheck.metrics.formats import load, save
from traincheck.metrics.series import Metrics
from traincheck.metrics.table import layer_tables, sparkline, step_table
from traincheck.metrics.trackers import (
    MLflow,
    TensorBoard,
    WandB,
    read_tensorboard,
    send,
    tracker_of,
)

SUFFIXES = [".csv", ".json", ".parquet", ".h5"]


def some(keys: int = 30, steps: int = 4) -> Metrics:
    drawn = random.Random(0)
    series = {
        f'activation/Net.{i}, "odd"[0]\u00e9/rms': {
            step * 20: drawn.gauss(0, 10 ** drawn.randint(-30, 30)) for step in range(steps)
        }
        for i in range(keys)
    }
    series["gradient/nan"] = {0: math.nan, 20: math.inf, 40: -math.inf}
    return Metrics(series)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_equal_after_a_round_trip(tmp_path: Path, suffix: str) -> None:
    if suffix == ".h5":
        pytest.importorskip("h5py")
    file = tmp_path / f"m{suffix}"
    save(some(), file)
    assert load(file) == some()
    assert traincheck.read_metrics(file) == some()
    assert load(file) != some(keys=3)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_hundred_thousand_keys(tmp_path: Path, suffix: str) -> None:
    if suffix == ".h5":
        pytest.importorskip("h5py")
    metrics = Metrics({f"activation/layer{i}/rms": {0: i / 7} for i in range(100_000)})
    file = tmp_path / f"m{suffix}"
    begin = time.process_time()
    save(metrics, file)
    assert load(file) == metrics
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"nothing of ours\n", b'{"a": 1}', b"\x00" * 99])
def test_other_files_are_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    if suffix == ".h5":
        pytest.importorskip("h5py")
    file = tmp_path / f"m{suffix}"
    file.write_bytes(content)
    with pytest.raises(TraceFormatError, match="has no metrics"):
        load(file)
    with pytest.raises(TraceFormatError):
        load(tmp_path / f"missing{suffix}")


def test_no_metrics_is_also_a_file(tmp_path: Path) -> None:
    for suffix in SUFFIXES[:3]:
        save(Metrics({}), tmp_path / f"m{suffix}")
        assert len(load(tmp_path / f"m{suffix}")) == 0


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    metrics = Metrics({"a/b/rms": {0: 0.1, 20: 2e9}, "c": {20: -1 / 3}})
    send(metrics, TensorBoard(tmp_path))
    single = {k: {s: float(np.float32(v)) for s, v in x.items()} for k, x in metrics.items()}
    assert read_tensorboard(tmp_path) == Metrics(single)


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: blocks of 32 KiB, pieces with checksum, length and kind."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield parts
            parts = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    metrics = some(3)
    send(metrics, WandB(mode="offline", dir=str(tmp_path), project="p"))
    (file,) = tmp_path.rglob("*.wandb")
    found: dict[int, dict[str, float]] = {}
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        history = record.history
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in history.item}
        if items:
            found[history.step.num] = {k: v for k, v in items.items() if k[0] != "_"}
    assert sorted(found) == [0, 20, 40, 60]
    numbers = metrics.to_dict()
    del numbers[0]["gradient/nan"], numbers[20]["gradient/nan"], numbers[40]["gradient/nan"]
    for step, values in numbers.items():
        assert {k: found[step][k] for k in values} == values


@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer ones ask for
    uri = (tmp_path / "mlruns").as_uri()
    metrics = Metrics({"activation/Net.fc/rms": {0: 0.5, 20: 1e-30}, "lstm[0]/x": {20: 3.0}})
    send(metrics, MLflow(uri=uri, experiment="e"))
    client = mlflow.MlflowClient(uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "e"]
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "activation/Net.fc/rms")
    assert {one.step: one.value for one in history} == metrics["activation/Net.fc/rms"]
    assert run.data.metrics["lstm_0_/x"] == 3.0


def test_an_unknown_tracker() -> None:
    with pytest.raises(UsageError, match="no tracker 'wb'"):
        tracker_of("wb")


def test_series() -> None:
    metrics = some(2)
    chosen = metrics.select("gradient/*", steps=range(10, 30))
    assert dict(chosen["gradient/nan"]) == {20: math.inf}
    assert metrics.steps == [0, 20, 40, 60]
    frame = metrics.to_dataframe()
    assert list(frame.columns) == ["step", "key", "value"]
    assert len(frame) == 11
    assert set(metrics.to_dict()[60]) == set(metrics) - {"gradient/nan"}


def test_sparklines() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 8) == "▅▅"
    assert sparkline([0.0, math.nan, 1.0], 8) == "▁!█"
    assert len(sparkline(range(100), 8)) == 8


def test_tables_keep_hostile_names_on_their_line() -> None:
    metrics = Metrics({"activation/a\nb\x1b[31m/rms": {0: 1.0}})
    lines = [*layer_tables(metrics), *step_table(metrics)]
    assert not any("\x1b" in line or "\n" in line for line in lines)
