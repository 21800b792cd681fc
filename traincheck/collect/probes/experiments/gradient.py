"""The loss is moved along its gradient: it must change by what the gradient says.

One copy makes the backward pass and keeps the gradient and all constants. Four copies compute the
loss of parameters moved by two sizes to both sides. Parameters are moved in proportion to their own
norms, so that a wrong gradient of a small one counts, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import close, memfd_create
from typing import Any, ClassVar

import torch

from traincheck.collect.probes.autograd import Recomputed, TensorHooks, graph_of, now
from traincheck.collect.probes.base import Call, Experiment, Laboratory, Result, Root, unobservable
from traincheck.collect.probes.functions import Constants, Functions, get, put
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.schema.probes.names import Experiments, Status

ERROR = 0.01  # relative error of a slope that is a fault
ROUGH = 0.1  # doubt from which on a slope says nothing
_STEP = 12500  # rounding errors by which a move changes the loss
_LARGEST = 0.005  # of the norm of a parameter, by which it is moved at most
_ROUNDING = 2e-7  # of a loss in float32, with the sums behind it
_LEAST_LOSS = 1e-6
_TINY = 1e-6  # of the norm of a parameter: it changes the last digits of what is computed
_GROUPS, _DEPTH = 8, 4  # parts of the model that are moved alone, and parts of their paths


@dataclass(frozen=True, slots=True)
class Slope:
    """A slope by finite differences against that of the gradient.

    Attributes:
        ratio: measured by said.
        spread: how far the two sizes are apart.
        kink: change of the slope between both sides that is not curvature.
        noise: rounding.
    """

    ratio: float
    spread: float
    kink: float
    noise: float

    @property
    def doubt(self) -> float:
        """The error below which nothing is known."""
        return max(5 * self.spread, 2 * self.kink, 10 * self.noise)

    @property
    def is_wrong(self) -> bool:
        error = abs(self.ratio - 1)
        return error > ERROR and error > self.doubt and self.doubt < ROUGH

    def numbers(self) -> dict[str, float]:
        """For the event."""
        return asdict(self)


class Gradient(Experiment):
    """Compares the gradient with a finite difference of the program's own loss."""

    name: ClassVar[str] = Experiments.GRADIENT

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        fd = memfd_create("traincheck")  # which copies of the process share
        try:
            result = _measured(call, laboratory, fd)
        except Exception:  # not what lets a copy go on, which needs the file
            close(fd)
            raise
        close(fd)
        return result


def _measured(call: Call, laboratory: Laboratory, fd: int) -> Result:
    taken = _take(call, laboratory, fd)
    if isinstance(taken, str):
        return unobservable(taken)
    said, loss = taken["said"], taken["loss"]
    taken["rounding"] = _ROUNDING * max(abs(loss), _LEAST_LOSS)
    slope = _slope(call, laboratory, fd, taken, groups=None)
    if not isinstance(slope, str) and (slope.is_wrong or slope.doubt > ERROR):
        # The terms of a loss can be much larger than their sum, as those of normalized advantages
        # are: how far tiny moves are from a straight line.
        moves = (_TINY, -_TINY, 2 * _TINY, -2 * _TINY)
        found = [_moved(call, laboratory, fd, size, None) for size in moves]
        values = [value for value in found if isinstance(value, float)]
        if len(values) == len(moves):
            up, down, far_up, far_down = values
            bend = max(abs(up + down - 2 * loss), abs(far_up - far_down - 2 * (up - down)))
            if bend / 2 > taken["rounding"]:
                taken["rounding"] = bend / 2
                slope = _slope(call, laboratory, fd, taken, groups=None)
    if isinstance(slope, str):
        return unobservable(slope)
    numbers = {**slope.numbers(), "said": said, "loss": loss, "parameters": taken["parameters"]}
    detail: dict[str, str] = {
        name: taken[name]
        for name in ("recomputed", "without_state", "functions", "by_design", "left_out")
        if name in taken
    }
    if not slope.is_wrong:
        if slope.doubt > ERROR:
            return unobservable("the loss is too rough for a finite difference")
        return Result(numbers=numbers, detail=detail)
    where, more = _located(call, laboratory, fd, taken)
    return Result(
        status=Status.MOVED,
        numbers={**numbers, **more},
        where=where,
        place=taken.get("place", ""),
        detail=detail,
    )


def _take(call: Call, laboratory: Laboratory, fd: int) -> dict[str, Any] | str:
    """The gradient and the constants, in ``fd``; or why there are none."""
    recomputed = Recomputed()
    functions = Functions(lambda preserves: recomputed.meet(preserves=preserves))
    constants = Constants(functions)
    hooks = TensorHooks()
    since: list[int] = []

    def change() -> None:
        _float32()
        since.append(now())
        functions.install()
        recomputed.install()
        hooks.install()
        constants.__enter__()  # type: ignore[no-untyped-call]

    def read(root: Root) -> Mapping[str, Any]:
        constants.is_on = False
        for used in functions.used:
            used.gradients = []
        found = _gradient(call, root, since[0], functions.nodes)
        if "unfit" not in found:
            purposes = functions.purposes()
            kept_out = {name: p.by_design for name, p in purposes.items() if p.by_design}
            replaced = {
                i: used.replaced() for i, used in enumerate(functions.used) if used.name in kept_out
            }
            put(fd, (found.pop("directions"), constants.found, replaced))
            found["by_design"] = "; ".join(f"{name} {why}" for name, why in kept_out.items())
            found["functions"] = ", ".join(n for n, p in purposes.items() if p.is_wrong)
        if hooks.place:
            found["unfit"] = f"a hook of a tensor ({hooks.place}) replaces its gradient"
        return {**found, **recomputed.facts()}

    outcome = laboratory.replay(change, read, kept=(fd,))
    if outcome.reason:
        return outcome.reason
    unfit = outcome.told.get("unfit")
    return str(unfit) if unfit else outcome.told


def _float32() -> None:
    """Turn autocast off: a finite difference needs the digits."""
    torch.set_autocast_enabled("cpu", False)
    original: Any = torch.autocast.__enter__

    @hidden
    def enter(self: Any) -> Any:
        self._enabled = False
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def _gradient(call: Call, root: Root, since: int, nodes: set[str]) -> dict[str, Any]:
    """Directions in which parameters are moved, and the slope that the gradient says."""
    if not any(tensor.requires_grad for tensor in root.tensors):
        return {"unfit": "the loss requires no gradient"}
    if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in root.tensors):
        return {"unfit": "the loss is in half precision"}
    graph = graph_of(root.tensors, since)
    if not graph.is_whole:
        return {"unfit": "the graph is too large"}
    if not graph.custom <= nodes:  # it was looked up before the copy began
        return {"unfit": f"{min(graph.custom - nodes)} is around the call of the model"}
    index = {id(parameter): i for i, parameter in enumerate(call.parameters)}
    before = [(p, p.detach().clone()) for p in graph.variables if id(p) in index]
    hooked = [p for p, _ in before if p._backward_hooks or p._post_accumulate_grad_hooks]
    moved = [p for p, _ in before if id(p) not in graph.old and p not in set(hooked)]
    if not moved:
        return {"unfit": "the loss reaches no parameter that was first used after the copy"}
    if any(parameter.dtype not in (torch.float32, torch.float64) for parameter in moved):
        return {"unfit": "parameters are in half precision"}
    for parameter in graph.variables:
        parameter.grad = None
    with torch._C._EnableTorchFunction():
        root.run()
    directions: dict[int, torch.Tensor] = {}
    slopes: dict[str, float] = {}
    for parameter in moved:
        gradient = parameter.grad
        if gradient is None:
            continue
        gradient = (gradient.to_dense() if gradient.is_sparse else gradient).detach().double()
        norm = float(gradient.norm())
        if not 0 < norm < float("inf"):
            continue
        size = max(float(parameter.detach().norm()), 1e-3 * parameter.numel() ** 0.5)
        directions[index[id(parameter)]] = (gradient * (size / norm)).to(parameter.dtype)
        slopes[str(index[id(parameter)])] = norm * size
    left_out = len(before) - len(moved)
    return {
        "directions": directions,
        "slopes": slopes,
        "said": sum(slopes.values()),
        "parameters": len(directions),
        **({"unfit": "all gradients are zero"} if not directions else {}),
        **({"left_out": f"{left_out} parameters with hooks or used before"} if left_out else {}),
    }


def _slope(
    call: Call,
    laboratory: Laboratory,
    fd: int,
    taken: Mapping[str, Any],
    groups: Sequence[int] | None,
) -> Slope | str:
    """The slope when these parameters are moved; None for all. Or why it is not known."""
    said = taken["said"] if groups is None else _said(taken, groups)
    loss, rounding = taken["loss"], taken["rounding"]
    large = min(_LARGEST, _STEP * rounding / said)
    values: dict[float, float] = {}
    for size in (large, -large, large / 2, -large / 2):
        found = _moved(call, laboratory, fd, size, groups)
        if isinstance(found, str):
            return found
        values[size] = found
    slopes, kinks = [], []
    for size in (large, large / 2):
        up, down = values[size], values[-size]
        slopes.append((up - down) / (2 * size))
        kinks.append((up - 2 * loss + down) / (size * said))
    return Slope(
        ratio=(4 * slopes[1] - slopes[0]) / (3 * said),
        spread=abs(slopes[1] - slopes[0]) / said,
        kink=abs(2 * kinks[1] - kinks[0]),
        noise=rounding / (large * said),
    )


def _moved(
    call: Call, laboratory: Laboratory, fd: int, size: float, groups: Sequence[int] | None
) -> float | str:
    """The loss where parameters are moved; or why it is not known."""
    modes: list[Constants] = []
    calls: list[Functions] = []

    def change() -> None:
        _float32()
        directions, recorded, replaced = get(fd)
        with torch.no_grad():
            for index, direction in directions.items():
                if groups is None or index in groups:
                    call.parameters[index].add_(direction, alpha=size)
        functions = Functions(replaced=replaced)
        functions.install()
        calls.append(functions)
        modes.append(Constants(functions, recorded))
        modes[0].__enter__()  # type: ignore[no-untyped-call]

    def read(root: Root) -> Mapping[str, Any]:
        return {"left": modes[0].left, "moved": calls[0].moved}

    outcome = laboratory.replay(change, read, kept=(fd,))
    if outcome.reason:
        return outcome.reason
    if outcome.told["left"]:
        return "a moved copy does fewer operations"
    return float(outcome.told["loss"]) + float(outcome.told["moved"])


def _located(
    call: Call, laboratory: Laboratory, fd: int, taken: dict[str, Any]
) -> tuple[str, dict[str, float]]:
    """The part of the model whose gradient is wrong by most, and its ratio."""
    parts: dict[str, list[int]] = {}
    for key in taken["slopes"]:
        name = call.name_of(call.parameters[int(key)])
        part = ".".join(name.split(".")[:-1][:_DEPTH]) or name
        parts.setdefault(part, []).append(int(key))
    worst, where = None, ""
    by_size = sorted(parts.items(), key=lambda item: -_said(taken, item[1]))
    for name, members in by_size[:_GROUPS] if len(parts) > 1 else ():
        slope = _slope(call, laboratory, fd, taken, groups=members)
        if isinstance(slope, str) or not slope.is_wrong:
            continue
        if worst is None or abs(slope.ratio - 1) > abs(worst.ratio - 1):
            worst, where = slope, name
    return where, {} if worst is None else {"worst_ratio": worst.ratio}


def _said(taken: Mapping[str, Any], members: Sequence[int]) -> float:
    return float(sum(taken["slopes"][str(index)] for index in members))
