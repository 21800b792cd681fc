"""Training steps with a hand-made call of a loss, for the rules about losses."""

from __future__ import annotations

from typing import Any

from tests.builders import TraceBuilder
from tests.checking import net
from traincheck.schema.events import Event

F = "torch.nn.functional."


def tensor(shape: tuple[int, ...], dtype: str = "float32", **stats: float) -> dict[str, Any]:
    """A tensor argument with these numbers."""
    out: dict[str, Any] = {"dtype": dtype, "shape": list(shape), "device": "cpu"}
    return {**out, "stats": stats} if stats else out


def computing(api: str, count: int = 2, before: str | None = None, **args: Any) -> TraceBuilder:
    """Steps whose loss is ``api`` of ``args``, after a call of ``before`` of the same size."""
    trace = net()
    for _ in range(count):
        trace.begin_step().batch().zero_grad().forward()
        if before is not None:
            trace.call(before, args={"input": args["input"]}, result=args["input"])
        trace.call(F + api, args={"reduction": "mean", **args}).backward().optimizer_step()
    return trace


def loss_run(api: str, count: int = 2, before: str | None = None, **args: Any) -> list[Event]:
    """The events of `computing`."""
    return computing(api, count, before, **args).build()
