"""Moves of a training loop that the builder does not have: scaling, clipping, schedules."""

from __future__ import annotations

from typing import Any

from tests.builders import TraceBuilder
from traincheck.schema.events import BatchEvent
from traincheck.schema.torch_api import Families

LOSS = {"dtype": "float32", "shape": [], "device": "cpu", "requires_grad": True}


def clip(
    trace: TraceBuilder, limit: Any = 1.0, norm: float = 3.5, parameters: int | None = None
) -> TraceBuilder:
    """Clips; ``parameters`` is how many there are, None for a generator."""
    count = {} if parameters is None else {"parameters": parameters}
    return trace.call(
        Families.CLIP_NORM,
        args={"max_norm": limit, **count},
        result={**LOSS, "value": norm},
        where="train.py:86",
    )


def scale(trace: TraceBuilder, *, enabled: bool = True) -> TraceBuilder:
    return trace.call(Families.SCALE, args={"enabled": enabled}, result=LOSS, where="train.py:83")


def unscale(trace: TraceBuilder, optimizer: str = "opt0") -> TraceBuilder:
    return trace.call(
        Families.UNSCALE, args={"enabled": True}, owner=optimizer, where="train.py:85"
    )


def scaler_step(
    trace: TraceBuilder, optimizer: str = "opt0", *, skips: bool = False, enabled: bool = True
) -> TraceBuilder:
    """A step through GradScaler, around that of the optimizer unless it is skipped."""
    span = trace.new_span()
    if not skips:
        with trace.inside(span):
            trace.optimizer_step(optimizer)
    trace.count(scaler_step=1)
    return trace.call(
        Families.SCALER_STEP,
        span=span,
        args={"enabled": enabled},
        owner=optimizer,
        where="train.py:88",
    )


def schedule(
    trace: TraceBuilder, *, lr: float | None = None, times: int = 1, cls: str = "StepLR"
) -> TraceBuilder:
    """Steps of a scheduler of opt0; the last sets its learning rate."""
    for _ in range(times):
        trace.call(
            f"torch.optim.lr_scheduler.{cls}.step",
            family=Families.SCHEDULER_STEP,
            owner="opt0",
            where="train.py:90",
        )
    if lr is not None:
        trace.optimizers["opt0"].hyper["lr"] = lr
    return trace


def scheduler_made(trace: TraceBuilder) -> TraceBuilder:
    return trace.call(
        "torch.optim.lr_scheduler.StepLR.__init__",
        family=Families.SCHEDULER_CREATED,
        owner="opt0",
        where="train.py:42",
    )


def batch(trace: TraceBuilder, index: int, epoch: int = 0, loader: str = "loader0") -> TraceBuilder:
    """A batch with this index and epoch."""
    trace.batch(loader)
    made = trace.events[-1]
    assert isinstance(made, BatchEvent)
    return trace.edit(made, index=index, epoch=epoch)


DROPOUT = "torch.nn.functional.dropout"
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
BATCH_NORM = "torch.nn.functional.batch_norm"


def dropout(
    module: str | None, *, on: bool, mode: bool | None = None, p: float = 0.5
) -> dict[str, Any]:
    """A call of dropout in ``module``, which is in training mode unless ``mode`` says otherwise."""
    return {
        "api": DROPOUT,
        "args": {"p": p, "training": on},
        "module": module,
        "training": on if mode is None else mode,
    }


def attention(module: str, *, p: float, mode: bool) -> dict[str, Any]:
    return {"api": ATTENTION, "args": {"dropout_p": p}, "module": module, "training": mode}


def norm(module: str, *, on: bool) -> dict[str, Any]:
    return {"api": BATCH_NORM, "args": {"training": on}, "module": module, "training": on}


def forward(
    trace: TraceBuilder,
    *inner: dict[str, Any],
    mode: bool = True,
    grad: bool = True,
    module: str = "Net",
) -> TraceBuilder:
    """The call of an outermost module with functions called inside."""
    if not grad:
        trace.set_stage("eval")
    trace.count(forward=grad)
    root = trace.new_span()
    with trace.inside(root):
        for call in inner:
            trace.call(**call, grad_enabled=grad)
    return trace.call(
        "__main__.Net.forward",
        span=root,
        family=Families.MODULE,
        module=module,
        root=True,
        training=mode,
        grad_enabled=grad,
    )


def evaluates(trace: TraceBuilder, module: str = "Net") -> TraceBuilder:
    return trace.call(Families.EVAL, module=module, where="train.py:70")
