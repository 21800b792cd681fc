"""Numbers for hand-made traces: put into events that the builder wrote without."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.builders import TraceBuilder
from traincheck.schema.events import BatchEvent, CallEvent, Event, StateEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

Numbers = dict[str, float] | None
OfVariable = Callable[[str, int], Numbers]  # name and step -> numbers
WHOLE = {"nonfinite": 0.0}
BROKEN = {"nonfinite": 3.0}


def norm(value: float) -> Numbers:
    return {"norm": value, "nonfinite": 0}


def numbered(
    events: Iterable[Event],
    *,
    gradient: OfVariable = lambda name, step: norm(1.0),
    parameter: OfVariable = lambda name, step: norm(5.0),
    first: OfVariable | None = None,
    batch: Callable[[int], Numbers] = lambda step: {"min": -1, "max": 1, "nonfinite": 0},
    loss: Callable[[int], float | str | None] = lambda step: 2.0 / (step + 1),
    result: Callable[[str, int], Numbers] = lambda module, step: None,
    module_class: str | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> list[Event]:
    """The events with numbers.

    first: of parameters when they are found; as ``parameter`` unless given. loss: what is
    propagated back. result: of modules. module_class, shapes: of variables, instead of theirs.
    """
    out: list[Event] = []
    for event in events:
        step = event.step or 0
        if isinstance(event, StateEvent) and event.summary is not None:
            take = gradient if event.role == "gradient" else parameter
            if event.change == "new" and first is not None:
                take = first
            stats = take(event.name, step)
            shape = (shapes or {}).get(event.name, event.summary.shape)
            out.append(
                event.replace(
                    summary=event.summary.replace(stats=stats, shape=shape),
                    module_class=module_class or event.module_class,
                )
            )
        elif isinstance(event, BatchEvent):
            leaves = {path: dict(leaf) for path, leaf in event.leaves.items()}
            leaves["0"]["stats"] = batch(step)
            out.append(event.replace(leaves=leaves))
        elif isinstance(event, CallEvent) and event.api == Families.BACKWARD:
            summary = TensorSummary("float32", ())
            told = {**tensor_json(summary), "value": loss(step)}
            out.append(event.replace(args={"tensors": told}))
        elif isinstance(event, CallEvent) and event.family == Families.MODULE:
            stats = result(event.module or "", step)
            given = (
                event.result
                if isinstance(event.result, dict)
                else tensor_json(TensorSummary("float32", (64, 10)))
            )
            out.append(event.replace(result={**given, "stats": stats} if stats else given))
        else:
            out.append(event)
    return out


class Activations:
    """Steps of a model in which an activation is called, as a module or as a function."""

    def __init__(self, api: str = "torch.nn.modules.activation.ReLU.forward") -> None:
        self.trace = TraceBuilder().process().model().optimizer()
        self.api = api

    def step(
        self,
        stats: dict[str, float],
        *,
        shape: tuple[int, ...] = (64, 32),
        output: tuple[int, ...] = (64, 10),
        grad: bool = True,
        calls: int = 1,
    ) -> Activations:
        trace = self.trace.begin_step()
        root = trace.new_span()
        looked = {**tensor_json(TensorSummary("float32", shape)), "stats": stats}
        common: dict[str, Any] = {"grad_enabled": grad}
        for _ in range(calls):
            if self.api.endswith(".forward"):
                inner = {"module": "Net.act", "family": Families.MODULE}
                trace.call(self.api, parent=root, result=looked, **inner, **common)
            else:
                trace.call(self.api, parent=root, result=looked, **common)
        trace.call(
            "__main__.Net.forward",
            span=root,
            family=Families.MODULE,
            module="Net",
            root=True,
            training=True,
            result=tensor_json(TensorSummary("float32", output)),
            **common,
        )
        return self

    def steps(self, count: int, stats: dict[str, float], **options: Any) -> Activations:
        for _ in range(count):
            self.step(stats, **options)
        return self

    def build(self) -> list[Event]:
        return self.trace.build()
