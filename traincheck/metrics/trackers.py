"""Send metrics to experiment trackers: TensorBoard, Weights & Biases, MLflow.

A tracker gets ``log(numbers, step)`` for each step, and ``close()``. `send` gives it all metrics of
a run; `traincheck.Monitor` gives it those of a step when that ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from traincheck.packages import Registry, imported

from .series import Metrics

_NO_NAME = re.compile(r"[^\w\-./: ]")  # what MLflow does not take
_TEXT = "text"  # the plugin of TensorBoard that shows Markdown
_MLFLOW_BATCH = 1000  # metrics that MLflow takes at once


class Tracker(Protocol):
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
        event, summary, tensor, types, writer = (
            imported(f"tensorboard.{name}", "TensorBoard")
            for name in (
                "compat.proto.event_pb2",
                "compat.proto.summary_pb2",
                "compat.proto.tensor_pb2",
                "compat.proto.types_pb2",
                "summary.writer.event_file_writer",
            )
        )
        self._event, self._summary = event.Event, summary.Summary
        self._metadata, self._tensor = summary.SummaryMetadata, tensor.TensorProto
        self._string = types.DT_STRING
        self._writer = writer.EventFileWriter(str(directory))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step. TensorBoard keeps single precision."""
        summary = self._summary()
        for key, value in numbers.items():
            summary.value.add(tag=key, simple_value=value)
        self._writer.add_event(self._event(step=step, summary=summary))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Send a text, which TensorBoard shows as Markdown."""
        metadata = self._metadata(
            plugin_data=self._metadata.PluginData(plugin_name=_TEXT), data_class=2
        )
        tensor = self._tensor(dtype=self._string, string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        summary = self._summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
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
        run_id: of the run to add to; empty for the present one or a new one.
        is_late: leave it to the first numbers, or `begin`, to begin a new run.

    Attributes:
        run_id: of the run; empty as long as it has not begun.
        client: of MLflow.
    """

    def __init__(
        self,
        uri: str | None = None,
        experiment: str | None = None,
        *,
        run_id: str = "",
        is_late: bool = False,
    ) -> None:
        mlflow = imported("mlflow", "MLflow")
        if uri is not None:
            mlflow.set_tracking_uri(uri)
        if experiment is not None:
            mlflow.set_experiment(experiment)
        self._mlflow, self._metric = mlflow, imported("mlflow.entities", "MLflow").Metric
        self._is_own = False
        self.client, self.run_id = mlflow.MlflowClient(), run_id
        if not is_late:
            self.begin()

    @property
    def uri(self) -> str:
        """The server, or the folder."""
        return str(self._mlflow.get_tracking_uri())

    def begin(self, name: str | None = None) -> str:
        """The run, with this name if it is a new one."""
        if not self.run_id:
            active = self._mlflow.active_run()
            self._is_own = active is None
            self.run_id = (active or self._mlflow.start_run(run_name=name)).info.run_id
        return self.run_id

    def log(self, numbers: Mapping[str, float], step: int, time_ms: int = 0) -> None:
        """Send the metrics of one step."""
        run_id = self.begin()
        found = [
            self._metric(_NO_NAME.sub("_", key), value, time_ms, step)
            for key, value in numbers.items()
        ]
        for start in range(0, len(found), _MLFLOW_BATCH):
            self.client.log_batch(run_id, metrics=found[start : start + _MLFLOW_BATCH])

    def close(self, status: str = "FINISHED") -> None:
        """End the run, if it was begun here."""
        if self._is_own:
            self._mlflow.end_run(status)


TRACKERS = Registry(
    "traincheck.trackers",
    "tracker",
    {
        name: f"{__name__}:{found.__name__}"
        for name, found in (("wandb", WandB), ("mlflow", MLflow), ("tensorboard", TensorBoard))
    },
)


def tracker_of(name: str, **settings: Any) -> Tracker:
    """A tracker by its name.

    Raises:
        UsageError: there is none of this name.
        MissingDependencyError: its package is not installed.
    """
    made: Tracker = TRACKERS.find(name).load()(**settings)
    return made


def send(metrics: Metrics, tracker: Tracker) -> None:
    """Send all metrics, step by step, and close the tracker."""
    try:
        for step, numbers in metrics.to_dict().items():
            tracker.log(numbers, step)
    finally:
        tracker.close()


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
