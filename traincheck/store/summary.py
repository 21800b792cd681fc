"""Summary of a run: counted in one pass, in memory that does not grow with its length.

The command `traincheck trace show` prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    Event,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import Marks
from traincheck.schema.observations.loads import LoadedAverage
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_tensor

_MOST = 1000  # different texts that are kept, because a program may create any number
_MOST_PARTS = 4  # of a collection in a mark
_FORWARD = ".forward"
# Marks that every run has, or that are reported elsewhere.
_KNOWN_MARKS = frozenset({Marks.PROCESS, Marks.COLLECTIVE_ENTERED, LoadedAverage.text})


@dataclass(slots=True, kw_only=True)
class ApiUse:
    """One API. total_ns: from entry to exit, inner calls included."""

    api: str
    calls: int = 0
    total_ns: int = 0
    exceptions: int = 0


@dataclass(slots=True, kw_only=True)
class ModelUse:
    """One root module: its class, and numbers of trained and all tensors and elements."""

    name: str
    cls: str | None = None
    tensors: int = 0
    elements: int = 0
    trainable_tensors: int = 0
    buffers: int = 0


@dataclass(slots=True, kw_only=True)
class GroupUse:
    """One group of an optimizer: number of parameters, and last hyper-parameters."""

    parameters: int
    hyper: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class OptimizerUse:
    """One optimizer. first_lr, last_lr: per group."""

    id: str
    cls: str
    where: str | None
    groups: list[GroupUse]
    first_lr: list[float] = field(default_factory=list)
    last_lr: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LoaderUse:
    """One source of batches. leaves: path -> dtype and shape in its first batch."""

    loader: str
    batches: int = 0
    epochs: int = 0
    workers: int = 0
    sampler: str | None = None
    leaves: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StepUse:
    """The steps of one rank: ended, recorded, and whether the last one is unfinished."""

    rank: int
    steps: int = 0
    recorded: int = 0
    is_last_unfinished: bool = False


@dataclass(slots=True, kw_only=True)
class Summary:
    """Content of one run. Models, optimizers and loaders are those of the lowest rank."""

    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    steps: dict[int, StepUse] = field(default_factory=dict)
    apis: dict[str, ApiUse] = field(default_factory=dict)
    models: dict[str, ModelUse] = field(default_factory=dict)
    optimizers: dict[str, OptimizerUse] = field(default_factory=dict)
    loaders: dict[str, LoaderUse] = field(default_factory=dict)
    seeds: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    warnings: Counter[tuple[str, str, str | None]] = field(default_factory=Counter)
    checkpoints: Counter[tuple[str, str | None, str | None]] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    marks: Counter[tuple[str, str]] = field(default_factory=Counter)


def summarize(events: Iterable[Event]) -> Summary:
    """Summarize ``events``."""
    counting = _Counting()
    for event in events:
        counting.add(event)
    return counting.summary


class _Counting:
    """The summary so far."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._owners: dict[tuple[str, str], tuple[int, str]] = {}
        self._by_kind = {
            "call": self._call,
            "state": self._state,
            "optimizer": self._optimizer,
            "step": self._step,
            "batch": self._batch,
        }

    def add(self, event: Event) -> None:
        summary = self.summary
        summary.events += 1
        summary.kinds[event.kind] += 1
        summary.stages[event.stage] += 1
        count = self._by_kind.get(event.kind)
        if count is not None:
            count(event)  # type: ignore[operator]
        elif event.kind == "rng":
            if event.change == "seed":
                _count(summary.seeds, (event.source, event.seed))
        elif event.kind == "collective":
            _count(summary.collectives, event.op)
        elif event.kind == "checkpoint":
            _count(summary.checkpoints, (event.op, event.path, event.target))
        elif event.kind == "warning":
            _count(summary.warnings, (event.category, event.text, event.where))
        elif event.kind == "mark" and event.text not in _KNOWN_MARKS:
            facts = ", ".join(f"{name}={_fact(value)}" for name, value in event.data.items())
            _count(summary.marks, (event.text, facts))

    def _call(self, event: CallEvent) -> None:
        use = self.summary.apis.get(event.api)
        if use is None:
            use = self.summary.apis[event.api] = ApiUse(api=event.api)
        use.calls += 1
        use.total_ns += event.time_ns - event.start_ns
        use.exceptions += event.exception is not None
        if event.root and event.family == Families.MODULE:
            model = self.summary.models.get(event.module or "")
            if model is not None and model.cls is None:
                model.cls = event.api.removesuffix(_FORWARD)

    def _state(self, event: StateEvent) -> None:
        if event.change != "new" or event.role not in ("parameter", "buffer"):
            return
        root = event.name.partition(".")[0]
        if not self._is_first(event, "model", root):
            return
        model = self.summary.models.setdefault(root, ModelUse(name=root))
        if event.role == "buffer":
            model.buffers += 1
            return
        elements = prod(event.summary.shape) if event.summary is not None else 0
        model.tensors += 1
        model.elements += elements
        if event.requires_grad:
            model.trainable_tensors += 1

    def _optimizer(self, event: OptimizerEvent) -> None:
        if not self._is_first(event, "optimizer", event.id):
            return
        groups = [GroupUse(parameters=len(g.params), hyper=g.hyper) for g in event.groups]
        known = self.summary.optimizers.get(event.id)
        if known is not None:
            known.groups = groups
            return
        rates = [g.hyper["lr"] for g in event.groups if isinstance(g.hyper.get("lr"), float)]
        self.summary.optimizers[event.id] = OptimizerUse(
            id=event.id, cls=event.cls, where=event.where, groups=groups, first_lr=rates
        )

    def _step(self, event: StepEvent) -> None:
        use = self.summary.steps.setdefault(event.rank, StepUse(rank=event.rank))
        if event.complete:
            use.steps += 1
            use.recorded += event.recorded
        use.is_last_unfinished = not event.complete
        for optimizer, rates in event.lr.items():
            known = self.summary.optimizers.get(optimizer)
            if known is not None and self._is_first(event, "optimizer", optimizer):
                known.last_lr = list(rates)

    def _batch(self, event: BatchEvent) -> None:
        if not self._is_first(event, "loader", event.loader):
            return
        use = self.summary.loaders.get(event.loader)
        if use is None:
            use = self.summary.loaders[event.loader] = LoaderUse(
                loader=event.loader,
                workers=event.workers,
                sampler=event.sampler,
                leaves={path: _leaf(value) for path, value in event.leaves.items()},
            )
        use.batches += 1
        use.epochs = max(use.epochs, event.epoch + 1)

    def _is_first(self, event: Event, what: str, name: str) -> bool:
        """Whether the event is of the process in which this name was first seen."""
        process = (event.rank, event.stream.partition("-")[0])
        return self._owners.setdefault((what, name), process) == process


def _count(counter: Counter[Any], key: Any) -> None:
    if key in counter or len(counter) < _MOST:
        counter[key] += 1


def _fact(value: Any) -> str:
    """The content of a mark in short: long or deep collections become their length."""
    if not isinstance(value, (dict, list)):
        return str(value)
    if is_tensor(value):
        return _leaf(value)
    parts = value.values() if isinstance(value, dict) else value
    is_deep = any(isinstance(part, (dict, list)) and not is_tensor(part) for part in parts)
    if len(value) > _MOST_PARTS or is_deep:
        return f"({len(value)} entr{'y' if len(value) == 1 else 'ies'})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_fact(part)}" for key, part in value.items()) + "}"
    return f"[{', '.join(map(_fact, value))}]"


def _leaf(value: Any) -> str:
    """A short name for a value in a batch: ``float32[64, 10]``."""
    if is_tensor(value):
        return f"{value['dtype']}{value['shape']}"
    return str(value.get("type", "dict")) if isinstance(value, dict) else type(value).__name__
