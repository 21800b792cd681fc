"""A profiled step as objects: the layers in a tree, its phases, its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OUTSIDE = "(outside modules)"


class Parameter(NamedTuple):
    """A parameter of a layer. identity: equal for tied ones."""

    name: str
    identity: int
    elements: int
    bytes: int
    is_trained: bool
    gradient_bytes: int
    state_bytes: int


class Spent(NamedTuple):
    """Nanoseconds. own: without the modules that it calls."""

    own: int = 0
    total: int = 0


_NO_TIME = Spent()


class Tensor(NamedTuple):
    """An input or output."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True, kw_only=True)
class Layer:
    """One module in a profiled step.

    Attributes:
        path: dotted, beginning with the class of the outermost module; `OUTSIDE` for the program.
        cls: dotted class.
        calls, recomputed: calls in forward passes, and again in backward passes.
        inputs, outputs: of its first call.
        gradient_in, gradient_out: shapes of the inputs and outputs that gradients flow through.
        forward, backward, again: time of forward passes, of backward passes, and of forward passes
            that are repeated in a backward pass.
        forward_flops, backward_flops: own.
        retained: bytes that it keeps for the backward pass, own.
        parameters: own.
    """

    path: str
    cls: str = ""
    calls: int = 0
    recomputed: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    input_bytes: int = 0
    output_bytes: int = 0
    gradient_in: tuple[tuple[int, ...], ...] = ()
    gradient_out: tuple[tuple[int, ...], ...] = ()
    varies: bool = False
    output_bad: bool = False
    gradient_in_bad: bool = False
    gradient_out_bad: bool = False
    forward: Spent = _NO_TIME
    backward: Spent = _NO_TIME
    again: Spent = _NO_TIME
    forward_flops: int = 0
    backward_flops: int = 0
    retained: int = 0
    grown: tuple[int, int] = (0, 0)
    buffers: int = 0
    parameters: tuple[Parameter, ...] = ()
    children: list[Layer] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def kind(self) -> str:
        """The class without its module."""
        return self.cls.rpartition(".")[2]

    def all(self) -> Iterator[Layer]:
        """It and all layers in it, the outer first."""
        yield self
        for child in self.children:
            yield from child.all()

    def tensors(self) -> list[Parameter]:
        """Its parameters and those of the layers in it, tied ones once."""
        found: dict[int, Parameter] = {}
        for layer in self.all():
            for parameter in layer.parameters:
                found.setdefault(parameter.identity, parameter)
        return list(found.values())

    def sum(self, attribute: str) -> int:
        """The sum of an own number over it and the layers in it."""
        return sum(getattr(layer, attribute) for layer in self.all())

    @property
    def flops(self) -> int:
        """FLOPs of both passes, with those of the layers in it."""
        return self.sum("forward_flops") + self.sum("backward_flops")

    @property
    def backward_own(self) -> int:
        """Nanoseconds in backward passes, without the modules that it calls."""
        return self.backward.own + self.again.own

    @property
    def backward_total(self) -> int:
        """Nanoseconds in backward passes, repeated forward passes included."""
        return self.backward.total + self.again.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The largest memory of a step, as far as it is counted.

    Attributes:
        bytes: all of it.
        at: path of the layer whose gradients were computed then; None before backward passes.
        held_by: bytes by kind: parameters, buffers, gradients, states, activations.
        layers: the layers that keep most for the backward pass: path and bytes.
        is_measured: whether the allocator of a GPU has counted ``bytes``.
    """

    bytes: int
    at: str | None
    held_by: Mapping[str, int]
    layers: Sequence[tuple[str, int]]
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The first NaN or infinity that spread.

    Attributes:
        step: number of the step.
        phase: forward, loss, given (an input or a parameter that is not finite already), backward,
            gradient (changed after the backward pass), optimizer.
        module: path; empty outside of modules.
        operation: a function, the name of a node of autograd, or of a parameter.
        value: NaN, Inf or -Inf.
        where: ``file:line``, if known.
        is_skipped: whether a gradient scaler has left the parameters as they were.
    """

    step: int
    phase: str
    module: str
    operation: str
    value: str
    where: str | None
    is_skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One profiled step of one process.

    Attributes:
        number: of the step.
        roots: the outermost modules.
        outside: the program outside of modules.
        phases: nanoseconds by phase.
    """

    number: int
    roots: Sequence[Layer]
    outside: Layer
    phases: Mapping[str, int]
    clock: str
    memory: Mapping[str, Any]
    origin: Origin | None
    facts: Mapping[str, Any]
    uncounted: Mapping[str, int]
    unseen: Mapping[str, int]
    complete: bool

    @property
    def duration_ns(self) -> int:
        """Nanoseconds of the step without the recording."""
        return sum(spent for phase, spent in self.phases.items() if phase != "overhead")

    def layers(self) -> Iterator[Layer]:
        """All layers, in the order of registration."""
        for root in self.roots:
            yield from root.all()

    def tensors(self) -> list[Parameter]:
        """All parameters, tied ones once."""
        return Layer(path="", children=list(self.roots)).tensors()

    @property
    def peak(self) -> Peak:
        """The largest memory of the step."""
        tensors = self.tensors()
        held_by = {
            "parameters": sum(one.bytes for one in tensors),
            "buffers": sum(layer.buffers for layer in self.layers()),
            "gradients": sum(one.gradient_bytes for one in tensors),
            "states": sum(one.state_bytes for one in tensors),
            "activations": sum(layer.retained for layer in [self.outside, *self.layers()]),
        }
        lasting = held_by["parameters"] + held_by["buffers"] + held_by["states"]
        counted = lasting + int(self.memory.get("activations", 0))
        measured = int(self.memory.get("allocated", 0))
        holders = sorted(self.layers(), key=lambda layer: -layer.retained)
        at = self.memory.get("allocated_at") if measured else self.memory.get("at")
        return Peak(
            bytes=measured or counted,
            at=at if at is None else at or OUTSIDE,
            held_by=held_by,
            layers=[(layer.path, layer.retained) for layer in holders[:5] if layer.retained],
            is_measured=bool(measured),
        )
