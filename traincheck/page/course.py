"""The course of a run over its steps: curves, stages, marks, and one row a layer of each map.

Takes in the events of a run once, beside the check engine. Its memory is bounded by the columns of
the axis and the names of the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from traincheck.page.axis import Axis, Row
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

_MOST_LAYERS = 2000  # rows of a map that are followed
_MOST_MARKS = 400
_MAPS = {"gradient": "gradient norm", "parameter": "parameter norm"}  # by role of the variable
LOSS, RATE, GRADIENT = "loss", "learning rate", "gradient norm"
_MODEL = "model"  # the mark of a model that was found, with its modules


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened once: a checkpoint, a warning, the end.

    Attributes:
        step: when; None before the first step.
        kind: "save", "load", "end", "gap".
        text: for people.
    """

    step: int | None
    kind: str
    text: str


@dataclass(slots=True)
class Layers:
    """One number for each layer and step: a map.

    Attributes:
        rows: name -> rank -> its numbers.
    """

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)


class Course:
    """What happened over the steps.

    Attributes:
        axis: of all rows.
        curves: name -> what it is of -> rank -> numbers; ``curves["loss"][""][0]``.
        maps: name -> numbers of layers.
        marks: in order.
        evaluations: steps after which the run evaluated, one row with the number of its forwards.
        modules: paths of modules in the order of their models.
        ranks: that recorded steps.
        skipped: steps that were not recorded.
        left_out: layers beyond the limit.
    """

    def __init__(self) -> None:
        self.axis = Axis()
        self.curves: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        self.maps: dict[str, Layers] = defaultdict(Layers)
        self.marks: list[Mark] = []
        self.evaluations: dict[int, Row] = {}
        self.modules: dict[str, str] = {}
        self.variables: dict[str, None] = {}
        self.ranks: set[int] = set()
        self.steps: dict[int, int] = defaultdict(int)
        self.skipped = 0
        self.left_out: set[str] = set()
        self.optimizers: dict[str, str] = {}
        # Rank -> map -> variable -> norm, of the step that goes on
        self._norms: dict[int, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))

    def add(self, event: Event) -> None:
        """Take in an event. Frequent kinds are tested first."""
        if isinstance(event, StateEvent):
            self._state(event)
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

    def _state(self, event: StateEvent) -> None:
        summary = event.summary
        if event.role == "parameter" and event.change in ("new", "replaced"):
            self.variables[event.name] = None
        name = _MAPS.get(event.role)
        if summary is None or event.step is None or name is None or not summary.stats:
            return
        norm = summary.stats.get("norm")
        if norm is not None:
            value = math.inf if summary.stats.get("nonfinite") else float(norm)
            # The last scan of the step counts: gradients of micro-batches accumulate
            self._norms[event.rank][name][event.name] = value

    def layer(self, name: str, layer: str, rank: int, step: int, value: float) -> None:
        """Enter a number of a layer into a map."""
        rows = self.maps[name].rows
        ranks = rows.get(layer)
        if ranks is None:
            if len(rows) >= _MOST_LAYERS:
                self.left_out.add(layer)
                return
            ranks = rows[layer] = {}
        row = ranks.get(rank)
        if row is None:
            row = ranks[rank] = self.axis.row()
        row.add(step, value)

    def curve(self, name: str, of: str, rank: int, step: int, value: float) -> None:
        """Enter a number of a curve."""
        ranks = self.curves[name][of]
        row = ranks.get(rank)
        if row is None:
            row = ranks[rank] = self.axis.row()
        row.add(step, value)

    def _call(self, event: CallEvent) -> None:
        if event.step is None:
            return
        if Families.BACKWARD in (event.api, event.family):
            value = _value(event.args.get("tensors"))
            if value is not None:
                self.curve(LOSS, "", event.rank, event.step, value)
        elif event.root and not event.grad_enabled and event.stage == "eval":
            row = self.evaluations.get(event.rank)
            if row is None:
                row = self.evaluations[event.rank] = self.axis.row()
            row.add(event.step, 1.0)

    def _step(self, event: StepEvent) -> None:
        if event.step is None:
            return
        rank = event.rank
        self.ranks.add(rank)
        self.steps[rank] += 1
        self.axis.column(event.step)
        if not event.recorded:
            self.skipped += 1
            return
        for optimizer, rates in event.lr.items():
            for index, rate in enumerate(rates):
                group = f"{optimizer} group {index}" if len(rates) > 1 else optimizer
                self.curve(RATE, group, rank, event.step, float(rate))
        for name, norms in self._norms.pop(rank, {}).items():
            squares: dict[str, float] = defaultdict(float)
            for variable, norm in norms.items():
                squares[variable.rpartition(".")[0] or variable] += norm * norm
            for layer, square in squares.items():
                self.layer(name, layer, rank, event.step, math.sqrt(square))
            if name == GRADIENT:
                self.curve(GRADIENT, "", rank, event.step, math.sqrt(sum(squares.values())))

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op in ("save", "load"):
            text = f"{event.op} {event.path or event.target or ''}".strip()
            self._note(Mark(event.step, event.op, text))

    def _mark(self, event: MarkEvent) -> None:
        if event.text == _MODEL:
            modules = event.data.get("modules")
            if isinstance(modules, dict):
                for path, facts in modules.items():
                    self.modules[path] = str(facts.get("class", "")) if facts else ""

    def _note(self, mark: Mark) -> None:
        if len(self.marks) < _MOST_MARKS:
            self.marks.append(mark)

    def in_model_order(self, layers: Iterable[str]) -> list[str]:
        """Layers in the order of their models; unknown ones last."""
        order = {name: index for index, name in enumerate((*self.modules, *self.variables))}
        return sorted(layers, key=lambda name: (_place(name, order), name))


def _place(name: str, order: dict[str, int]) -> int:
    found = order.get(name)
    if found is None:
        found = order.get(name.rpartition(".")[0])
    return len(order) if found is None else found


def _value(given: Any) -> float | None:
    """The number in a loss."""
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    value = given.get("value") if isinstance(given, dict) else None
    return float(value) if isinstance(value, (int, float)) else None
