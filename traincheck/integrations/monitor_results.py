"""The numbers that a monitor has taken: kept, logged, saved, and read again; and its failures."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.handlers import give_back
from traincheck.metrics import formats
from traincheck.metrics.formats import load
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import read_run

if TYPE_CHECKING:
    import pandas as pd

    from traincheck.collect.monitor.model_monitor import ModelMonitor

_MOST_FAULTS = 10


class MonitorResults:
    """The numbers of a monitor; see `Monitor`.

    Args:
        logger: gets warnings.

    Attributes:
        logger: the same.
        current_step: the step that has begun last.
        failed: metrics that failed, with ``metric``, ``on``, ``error`` and ``step``.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.current_step: int | None = None
        self.failed: list[dict[str, Any]] = []
        self._core: ModelMonitor | None = None
        self._is_due: Callable[[int], bool] = bool
        self._is_open = False  # a step that is measured goes on
        self._history = _History()
        self._faults = 0
        self._told: set[str] = set()

    def is_monitoring(self) -> bool:
        """Whether the present step is measured, and not paused."""
        core = self._core
        return self._is_open and core is not None and (core.is_in_reference or not core.is_paused)

    # -- numbers of the program

    def log_scalar(
        self, key: str, value: Any, aggregation_fn: Any = None, force: bool = False
    ) -> None:
        """Add a number, such as the loss; the mean of several in one step is taken.

        Args:
            key: its key.
            value: a number, or a tensor of one element.
            aggregation_fn: as for `add_activation_metric`.
            force: also in a step that is not measured.
        """
        if self._is_measuring():
            self._log(key, value, aggregation_fn)
        elif force and self.current_step is not None:
            self._history.add(self.current_step, {key: float(value)})

    def log_scalars(self, monitor_dict: Mapping[str, Any], force: bool = False) -> None:
        """Add several numbers: `log_scalar` for each."""
        for key, value in monitor_dict.items():
            self.log_scalar(key, value, force=force)

    def log_tensor(self, key: str, tensor: Any, aggregation_fn: Any = None) -> None:
        """Add a tensor of values, of which the mean is taken."""
        if self._is_measuring():
            self._log(key, tensor, aggregation_fn)

    def _is_measuring(self) -> bool:
        """Whether numbers belong to the monitored model: not while its reference runs."""
        core = self._core
        return self.is_monitoring() and core is not None and not core.is_in_reference

    def _log(self, key: str, value: Any, aggregate: Any) -> None:
        try:
            assert self._core is not None
            self._core.values.log(key, value, aggregate)
        except Exception as error:  # training must go on whatever is logged
            give_back(error)
            self._failed(key, "log", error)

    # -- results

    def get_step_metrics(self) -> dict[str, float]:
        """The numbers of the present step by key, once it has ended."""
        return self._history.of(self.current_step)

    def get_all_metrics(self) -> dict[int, dict[str, float]]:
        """The numbers of all measured steps, by step and key."""
        return {step: self._history.of(step) for step in self._history.steps}

    def condensed_log_dict(self) -> dict[str, dict[int, float]]:
        """The numbers of all measured steps, by key and step."""
        return {key: dict(values) for key, values in self.metrics.items()}

    @property
    def metrics(self) -> Metrics:
        """The numbers of all measured steps."""
        series: dict[str, dict[int, float]] = {}
        for step in self._history.steps:
            for key, value in self._history.of(step).items():
                series.setdefault(key, {})[step] = value
        found = Metrics(series)
        found.failed = list(self.failed)
        return found

    def to_dataframe(self) -> pd.DataFrame:
        """The numbers as columns step, key and value."""
        return self.metrics.to_dataframe()

    def save(self, path: str | Path) -> None:
        """Write the numbers to a file: .csv, .json, .parquet, .h5 or .hdf5.

        Raises:
            UsageError, OutputError, MissingDependencyError: the file cannot be written.
        """
        formats.save(self.metrics, path)

    def save_hdf5(self, filename: str | Path, condensed: bool = True) -> None:
        """Write the numbers as HDF5, for `load_hdf5` and `traincheck.read_metrics`."""
        path = Path(filename)
        formats.save_as(self.metrics, path, ".h5")

    @staticmethod
    def load_hdf5(filename: str | Path) -> dict[str, dict[int, float]]:
        """The numbers of such a file, by key and step.

        Raises:
            TraceFormatError: it is not such a file.
        """
        found = formats.load_as(Path(filename), ".h5")
        return {key: dict(values) for key, values in found.items()}

    def load_metrics(self, log_dict: Mapping[int, Mapping[str, float]]) -> None:
        """Continue with the numbers of an earlier monitor, as `get_all_metrics` gave them.

        Raises:
            ValueError: there are numbers already.
        """
        if self._history.steps:
            raise ValueError("The current log dict is not empty. Please clear it first.")
        for step, numbers in log_dict.items():
            self._history.add(int(step), numbers)

    def clear(self) -> None:
        """Forget the numbers."""
        self._history = _History()

    # -- failure

    def _failed(self, metric: str, on: str, error: Exception) -> None:
        """A metric failed: it is off from now on, and this is said once."""
        text = f"{type(error).__name__}: {error}"
        self.failed.append({"metric": metric, "on": on, "error": text, "step": self.current_step})
        self.logger.warning(
            "traincheck: metric %r of %s failed at step %s and is off from now on: %s",
            metric, on, self.current_step, text,
        )  # fmt: skip

    def note_fault(self, error: BaseException) -> None:
        """Something of ours failed."""
        self._fault(error)

    def _fault(self, error: BaseException) -> None:
        """Something of ours failed: the monitor is off after some of these."""
        self._faults += 1
        self._warn(f"the monitor failed: {type(error).__name__}: {error}")
        if self._faults >= _MOST_FAULTS:
            self._is_due = lambda step: False
            self._warn("the monitor is off after too many failures")

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.logger.warning("traincheck: %s", text)


class _History:
    """The numbers of all steps, 8 bytes each: keys are shared by the steps that have the same."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[tuple[str, ...], array[float]]] = {}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}

    @property
    def steps(self) -> list[int]:
        return list(self._steps)

    def begin(self, step: int) -> None:
        self._steps.setdefault(step, ((), array("d")))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        whole = {**self.of(step), **numbers}
        keys = tuple(whole)
        keys = self._keys.setdefault(keys, keys)
        self._steps[step] = keys, array("d", (float(value) for value in whole.values()))

    def of(self, step: int | None) -> dict[str, float]:
        found = self._steps.get(-1 if step is None else step)
        return {} if found is None else dict(zip(*found))


def read_metrics(path: str | Path) -> Metrics:
    """The metrics of a recorded run, or of a file with the ending .csv, .json, .parquet or .h5.

    Args:
        path: a run directory, or a file.

    Raises:
        TraceFormatError: it cannot be read, or is something else.
        UsageError: there are no metrics, or no format is known for its name.
        MissingDependencyError: a package for this format is not installed.
    """
    return read_run(path) if Path(path).is_dir() else load(path)
