"""The timeline of a run: curves, marks, and maps of layers over its steps.

Takes in the events of a run once, beside the check engine. Its memory is bounded by the columns of
the axis and the names of the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincheck.page.axis import Axis, Row
from traincheck.page.encode import Grid
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary

StepNorms = dict[str, dict[str, float | None]]  # by role and name of the variable

_MOST_MARKS = 400
FIRST_SEEN = ("new", "replaced")  # changes of a variable with a new tensor
DRAWN_ROLES = {
    "gradient": "gradient norm",
    "parameter": "parameter norm",
}  # by role of the variable
LOSS, RATE, GRADIENT = "loss", "learning rate", "gradient norm"
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_PROCESS = "process"
_VERSIONS = ("python", "torch", "traincheck")
_MODEL = "model"  # the mark of a model that was found, with its modules


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened once: a checkpoint.

    Attributes:
        step: when; None before the first step.
        kind: "save" or "load".
        text: for people.
    """

    step: int | None
    kind: str
    text: str


class _Layout(NamedTuple):
    """Variables of a step, and their layers. places: for each variable, which layer it is of."""

    variables: tuple[str, ...]
    layers: tuple[str, ...]
    places: NDArray[np.intp]

    @classmethod
    def of(cls, variables: tuple[str, ...]) -> _Layout:
        numbers: dict[str, int] = {}
        places = [numbers.setdefault(_layer_of(name), len(numbers)) for name in variables]
        return cls(variables, tuple(numbers), np.array(places, np.intp))


class Timeline:
    """The numbers and marks of a run over its steps.

    Attributes:
        axis: of all rows.
        curves: name -> what it is of -> rank -> numbers; ``curves["loss"][""][0]``.
        maps: name -> numbers of layers.
        shift: is added to the steps of the run. Steps before 0 are left out then.
        marks: in order.
        evaluations: steps after which the run evaluated, one row with the number of its forwards.
        modules: paths of modules in the order of their models.
        ranks: that recorded steps.
        variables: names of layers and parameters in the order in which they were found.
        steps: rank -> number of steps. recorded: of those that were recorded.
        optimizers: name -> class.
        versions: of Python, torch and traincheck in the process that trained.
        norms: rank -> role -> variable -> norm in the step that goes on; None if not recorded.
    """

    def __init__(self, axis: Axis | None = None, shift: int = 0) -> None:
        self.axis = axis or Axis()
        self.shift = shift
        self.curves: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        self.maps: dict[str, Grid] = {}
        self.marks: list[Mark] = []
        self.evaluations: dict[int, Row] = {}
        self.modules: dict[str, str] = {}
        self.variables: dict[str, None] = {}
        self.ranks: set[int] = set()
        self.steps: dict[int, int] = defaultdict(int)
        self.recorded: dict[int, int] = defaultdict(int)
        self.optimizers: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.norms: dict[int, StepNorms] = defaultdict(lambda: defaultdict(dict))
        self._layouts: dict[tuple[int, str], _Layout] = {}  # of the last step, by rank and role

    def add(self, event: Event) -> None:
        """Take in an event. Frequent kinds are tested first."""
        if isinstance(event, StateEvent):
            self.enter(event)
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StepEvent):
            self._step(event)
        elif isinstance(event, CheckpointEvent):
            self._checkpoint(event)
        elif isinstance(event, MarkEvent):
            self._mark(event)
        elif isinstance(event, OptimizerEvent):
            self.optimizers[event.id] = event.cls

    def enter(self, event: StateEvent) -> None:
        """Take in a change of a variable."""
        if event.role == "parameter" and event.change in FIRST_SEEN:
            self.variables[_layer_of(event.name)] = None
            self.variables[event.name] = None
        if event.summary is not None and event.step is not None:
            # The last scan of the step counts: gradients of micro-batches accumulate
            self.norms[event.rank][event.role][event.name] = norm_of(event.summary)

    def layers(self, name: str, rank: int, step: int, numbers: Mapping[str, float]) -> None:
        """Enter numbers of layers in a step into a map."""
        grid = self.maps.get(name)
        if grid is None:
            grid = self.maps[name] = Grid(self.axis)
        if step + self.shift >= 0:
            grid.add(rank, step + self.shift, numbers)

    def curve(self, name: str, of: str, rank: int, step: int, value: float) -> None:
        """Enter a number of a curve."""
        self._enter(self.curves[name][of], rank, step, value)

    def _enter(self, ranks: dict[int, Row], rank: int, step: int, value: float) -> None:
        row = ranks.get(rank)
        if row is None:
            row = ranks[rank] = self.axis.row()
        if step + self.shift >= 0:
            row.add(step + self.shift, value)

    def _call(self, event: CallEvent) -> None:
        if event.step is None:
            return
        if Families.BACKWARD in (event.api, event.family):
            value = _value(event.args.get("tensors"))
            if value is not None:
                self.curve(LOSS, "", event.rank, event.step, value)
        elif event.root and not event.grad_enabled and event.stage == "eval":
            self._enter(self.evaluations, event.rank, event.step, 1.0)

    def _step(self, event: StepEvent) -> None:
        if event.step is None:
            return
        rank = event.rank
        self.ranks.add(rank)
        self.steps[rank] += 1
        self.axis.column(max(event.step + self.shift, 0))
        if not event.recorded:
            return
        self.recorded[rank] += 1
        for optimizer, rates in event.lr.items():
            for index, rate in enumerate(rates):
                group = f"{optimizer} group {index}" if len(rates) > 1 else optimizer
                self.curve(RATE, group, rank, event.step, float(rate))
        for role, found in self.norms.pop(rank, {}).items():
            norms = {name: norm for name, norm in found.items() if norm is not None}
            if norms and role in DRAWN_ROLES:
                self._enter_norms(role, rank, event.step, norms)

    def _enter_norms(self, role: str, rank: int, step: int, norms: Mapping[str, float]) -> None:
        """Enter the root of the sum of squares of the variables of each layer."""
        layout, variables = self._layouts.get((rank, role)), tuple(norms)
        if layout is None or layout.variables != variables:
            layout = self._layouts[rank, role] = _Layout.of(variables)
        values = np.fromiter(norms.values(), np.float64, len(norms))
        squares = np.bincount(layout.places, values * values)
        name = DRAWN_ROLES[role]
        self.layers(name, rank, step, dict(zip(layout.layers, np.sqrt(squares).tolist())))
        if name == GRADIENT:
            self.curve(GRADIENT, "", rank, step, math.sqrt(sum(squares.tolist())))

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op in ("save", "load"):
            text = f"{event.op} {event.path or event.target or ''}".strip()
            step = None if event.step is None else max(event.step + self.shift, 0)
            if len(self.marks) < _MOST_MARKS:
                self.marks.append(Mark(step, event.op, text))

    def _mark(self, event: MarkEvent) -> None:
        if event.text == _MODEL:
            modules = event.data.get("modules")
            if isinstance(modules, dict):
                for path, facts in modules.items():
                    self.modules[path] = str(facts.get("class", "")) if facts else ""
        elif event.text == _PROCESS:
            self.versions |= {k: str(event.data[k]) for k in _VERSIONS if k in event.data}

    def in_model_order(self, layers: Iterable[str]) -> list[str]:
        """Layers in the order of their models; unknown ones follow the module that holds them."""
        order: dict[str, int] = {}
        for name in (*self.modules, *self.variables):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):  # a container comes before its first module
                order.setdefault(".".join(parts[:end]), len(order))

        def place(name: str) -> int:
            found = order.get(name)
            return order.get(name.rpartition(".")[0], len(order)) if found is None else found

        return sorted(layers, key=lambda name: (place(name), name))


def norm_of(summary: TensorSummary | None) -> float | None:
    """The recorded norm; infinite if the tensor holds NaN or infinity; None if it is not known."""
    stats = summary.stats if summary is not None else None
    if not stats:
        return None
    if stats.get("nonfinite"):
        return math.inf
    norm = stats.get("norm")
    return None if norm is None else float(norm)


def _layer_of(variable: str) -> str:
    return variable.rpartition(".")[0] or variable


def _value(given: Any) -> float | None:
    """The number in a loss; infinite if it is not finite, which a trace has as text."""
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    value = given.get("value") if isinstance(given, dict) else None
    if isinstance(value, str):
        return math.inf if value in _NOT_FINITE else None
    return float(value) if isinstance(value, (int, float)) else None
