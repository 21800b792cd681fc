"""Runs in the classes of kinds about backward passes and their updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.builders import TraceBuilder
from tests.checking import net
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import GRAD, Families

STEPS = 8
Make = Callable[[], TraceBuilder]


def healthy() -> TraceBuilder:
    return net().steps(STEPS, eval_every=4)


def clipped(*, each: bool) -> TraceBuilder:
    """Three backward passes in each step, and a call that clips after each, or after the last."""
    run = net()
    for _ in range(STEPS):
        run.begin_step().batch().zero_grad()
        for number in range(3):
            run.forward().backward()
            if each or number == 2:
                run.call(Families.CLIP_NORM, args={"max_norm": 1.0}, where="train.py:86")
        run.optimizer_step()
    return run


def two_losses(*, cleared: bool = False, where: str = "train.py:85") -> TraceBuilder:
    """Two backward passes before each update; the gradients of the first may be cleared."""
    run = net()
    for _ in range(STEPS):
        run.begin_step().batch().zero_grad().forward().backward()
        if cleared:
            run.zero_grad()
        run.forward().backward()
        last = run.events[-1]
        assert isinstance(last, CallEvent)
        run.edit(last, where=where)
        run.optimizer_step()
    return run


def derived(*graphs: bool, behind: bool = False) -> TraceBuilder:
    """``torch.autograd.grad`` in each step, before or behind its backward pass."""
    run = net()
    for _ in range(STEPS):
        run.begin_step().batch().zero_grad().forward()
        if behind:
            run.backward()
        for graph in graphs:
            run.call(GRAD, args={"create_graph": graph}, where="train.py:70")
        if not behind:
            run.backward()
        run.optimizer_step()
    return run


PASS_CASES: Mapping[tuple[str, str], Make] = {
    ("loop.clipping of several passes", "none"): healthy,
    ("loop.clipping of several passes", "once"): lambda: clipped(each=False),
    ("loop.clipping of several passes", "several"): lambda: clipped(each=True),
    ("loop.losses of an update", "one line"): healthy,
    ("loop.losses of an update", "several lines"): two_losses,
    ("loop.derivatives within a loss", "none"): healthy,
    ("loop.derivatives within a loss", "with a graph"): lambda: derived(True, True),
    ("loop.derivatives within a loss", "both"): lambda: derived(True, False),
    ("loop.derivatives within a loss", "without a graph"): lambda: derived(False),
}

# Runs that are near those of a fault, and in a calm class
NEAR: Mapping[tuple[str, str], Make] = {
    ("loop.losses of an update", "one line"): lambda: two_losses(cleared=True),
    ("loop.derivatives within a loss", "none"): lambda: derived(False, behind=True),
}
