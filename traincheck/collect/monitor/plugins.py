"""Metrics of the program for unedited scripts: marked functions in plugin files."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from traincheck.collect.monitor.functions import FunctionMetric, FunctionMetrics
from traincheck.collect.monitor.numbers import StepNumbers, leaves
from traincheck.handlers import give_back

MARK = "__traincheck_metric__"
SUBJECTS = ("activation", "parameter", "gradient")


class Plugins:
    """The metrics of plugin files, which are loaded before the first measured forward.

    Args:
        paths: of the files.
        includes: whether a module or variable is monitored.

    Attributes:
        failed: failures since they were written last.
    """

    def __init__(self, paths: Sequence[str], includes: Callable[[str], bool]) -> None:
        self._paths = list(paths)
        self._includes = includes
        self._metrics: dict[str, dict[str, FunctionMetric]] = {name: {} for name in SUBJECTS}
        self.failed: list[dict[str, str]] = []
        self._training = FunctionMetrics(self.fail)
        self._evaluation = FunctionMetrics(self.fail)

    def load(self) -> None:
        """Run the files, once. One that fails is left out."""
        if not self._paths:
            return
        paths, self._paths = self._paths, []
        states = random.getstate(), torch.default_generator.get_state()
        for number, path in enumerate(paths):
            try:
                self._take(_module(path, f"traincheck_plugin_{number}"))
            except Exception as error:  # training must go on whatever the file does
                give_back(error)
                self.fail(Path(path).name, "plugin", error)
        random.setstate(states[0])
        torch.default_generator.set_state(states[1])

    def _take(self, module: ModuleType) -> None:
        for function in vars(module).values():
            marked = getattr(function, MARK, None)
            if isinstance(marked, dict):
                name, regex = marked["name"], re.compile(marked["regex"])
                metric = FunctionMetric(name, function, regex, per=marked["per"])
                self._metrics[marked["on"]][name] = metric

    @property
    def has_any(self) -> bool:
        """Whether there is any metric."""
        return any(self._metrics.values())

    def run(self, subject: str, name: str, value: Any, *, is_training: bool) -> None:
        """Run the metrics of one kind of tensor on all tensors in a value."""
        metrics = self._metrics[subject]
        if not metrics or not self._includes(name):
            return
        values = self._training if is_training else self._evaluation
        state = torch.default_generator.get_state()
        leaves(
            value,
            name,
            lambda leaf, t: values.run(subject, leaf, metrics, t, weight=float(t.numel() or 1)),
        )
        torch.default_generator.set_state(state)

    def hand_over(self, training: StepNumbers, evaluation: StepNumbers) -> None:
        """Move the values of the step to its other numbers."""
        for own, numbers in ((self._training, training), (self._evaluation, evaluation)):
            numbers.values.update(own.take_weighted())

    def fail(self, metric: str, on: str, error: Exception) -> None:
        """Note a failure for the next record."""
        text = f"{type(error).__name__}: {error}"[:500]
        self.failed.append({"metric": metric, "on": on, "error": text})


def _module(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
