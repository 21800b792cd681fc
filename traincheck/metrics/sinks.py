"""Send metrics to experiment trackers: TensorBoard, Weights & Biases, MLflow.

A sink gets ``log(numbers, step)`` for each step, and ``close()``. `send` gives it all metrics of a
run; `traincheck.Monitor` gives it those of a step when that ends.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from traincheck.errors import MissingDependencyError, UsageError

from .series import Metrics

_NO_NAME = re.compile(r"[^\w\-./: ]")  # what MLflow does not take
_MLFLOW_BATCH = 1000  # metrics that MLflow takes at once


class Sink(Protocol):
    """A receiver of metrics."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step."""

    def close(self) -> None:
        """No further metrics follow."""


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        directory: where to write them.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(self, directory: str | Path = "runs") -> None:
        event, summary, writer = (
            imported(f"tensorboard.{name}", "TensorBoard")
            for name in (
                "compat.proto.event_pb2",
                "compat.proto.summary_pb2",
                "summary.writer.event_file_writer",
            )
        )
        self._event, self._summary = event.Event, summary.Summary
        self._writer = writer.EventFileWriter(str(directory))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step. TensorBoard keeps single precision."""
        summary = self._summary()
        for key, value in numbers.items():
            summary.value.add(tag=key, simple_value=value)
        self._writer.add_event(self._event(step=step, summary=summary))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases: the present one, or a new one.

    Args:
        settings: for ``wandb.init``, such as ``project`` and ``mode="offline"``.

    Raises:
        MissingDependencyError: wandb is not installed.
    """

    def __init__(self, **settings: Any) -> None:
        wandb = imported("wandb", "Weights & Biases")
        self._is_own = wandb.run is None or bool(settings)
        self._run = wandb.init(**settings) if self._is_own else wandb.run

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._run.finish()


class MLflow:
    """A run of MLflow: the present one, or a new one.

    MLflow allows fewer characters in keys: others are replaced by "_".

    Args:
        uri: of the tracking server, or a folder; None for that of MLflow.
        experiment: name; None for that of MLflow.

    Raises:
        MissingDependencyError: mlflow is not installed.
    """

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        mlflow = imported("mlflow", "MLflow")
        if uri is not None:
            mlflow.set_tracking_uri(uri)
        if experiment is not None:
            mlflow.set_experiment(experiment)
        active = mlflow.active_run()
        self._mlflow, self._metric = mlflow, imported("mlflow.entities", "MLflow").Metric
        self._is_own = active is None
        self._id = (active or mlflow.start_run()).info.run_id
        self._client = mlflow.MlflowClient()

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step."""
        found = [
            self._metric(_NO_NAME.sub("_", key), value, 0, step) for key, value in numbers.items()
        ]
        for start in range(0, len(found), _MLFLOW_BATCH):
            self._client.log_batch(self._id, metrics=found[start : start + _MLFLOW_BATCH])

    def close(self) -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._mlflow.end_run()


SINKS: dict[str, Callable[..., Sink]] = {
    "wandb": WandB,
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
}


def sink_of(name: str, **settings: Any) -> Sink:
    """A sink by its name.

    Raises:
        UsageError: there is none of this name.
        MissingDependencyError: its package is not installed.
    """
    if name not in SINKS:
        raise UsageError(f"there is no sink {name!r}", fix=f"use one of {', '.join(SINKS)}")
    return SINKS[name](**settings)


def send(metrics: Metrics, sink: Sink) -> None:
    """Send all metrics, step by step, and close the sink."""
    try:
        for step, numbers in metrics.to_dict().items():
            sink.log(numbers, step)
    finally:
        sink.close()


def read_tensorboard(directory: str | Path) -> Metrics:
    """The metrics of event files, in single precision.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """
    name = "tensorboard.backend.event_processing.event_accumulator"
    found = imported(name, "TensorBoard").EventAccumulator(
        str(directory), size_guidance={"scalars": 0, "tensors": 0}
    )
    found.Reload()
    series: dict[str, dict[int, float]] = {}
    for key in found.Tags()["scalars"]:
        series[key] = {event.step: float(event.value) for event in found.Scalars(key)}
    for key in found.Tags()["tensors"]:
        series[key] = {event.step: _scalar(event.tensor_proto) for event in found.Tensors(key)}
    return Metrics(series)


def _scalar(proto: Any) -> float:
    return float(proto.float_val[0]) if proto.float_val else math.nan


def imported(name: str, what: str) -> Any:
    """A module of a package that is not required.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingDependencyError(
            f"{what} needs the package {package}: {error}", fix=f"pip install {package}"
        ) from error
