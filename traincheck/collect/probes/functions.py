"""Gradients that are another one on purpose, or a constant, in a copy of the process.

The backward of some functions is another one on purpose: gradient reversal, straight-through
estimates, stored gradients of score distillation. Such a call is replaced in moved copies by what
its backward says: its result stays what it was, and the loss moves by the gradients of its inputs.
So the rest of the gradient is still compared. To see whether a backward is the derivative of its
forward, the function is called again with inputs that are moved a little. Where its backward says
something else, its own behaviour shows whether that is meant: a backward can be for the sake of its
gradient only.

A gradient takes as constants what is detached, read as a number, chosen, or computed without
gradients from what requires them. Targets of temporal differences, advantages and straight-through
estimates are such. A finite difference has to do the same: they are recorded in one copy, and put
back in others. Within `autograd.Function.forward` nothing is a constant: its backward answers.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import fstat, lseek, read
from os import write as _write
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from traincheck.collect.probes.batch import leaves, mapped
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.handlers import give_back

_ERROR = 0.01  # relative
_STEPS = {torch.float64: 1e-5, torch.float32: 1e-3}  # of the size of an input
_FAR = 0.1  # a move that shows what a gradient depends on
_STILL = 0.01  # share of the results that may move, where a result follows its input by jumps


@dataclass(frozen=True, slots=True)
class Purpose:
    """The finding about a class.

    Attributes:
        by_design: why its gradient is another one on purpose, as a clause; empty if it is not.
        is_wrong: its backward is not the derivative of its forward, and nothing shows a purpose.
    """

    by_design: str = ""
    is_wrong: bool = False


def purpose_of(apply: Callable[..., Any], args: tuple[Any, ...]) -> Purpose:
    """Judge one call. args: copies of its arguments; those that require a gradient are leaves."""
    for dtype in _STEPS:  # kernels that are compiled take their own only
        try:
            return _compared(_Trial(apply, args, dtype))
        except Exception as error:
            give_back(error)
    return Purpose("cannot be called again")


class _Trial:
    """Calls a function again and again, from one state of the random numbers."""

    def __init__(self, apply: Callable[..., Any], args: Any, dtype: torch.dtype) -> None:

        def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
            plain = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
            return plain.requires_grad_(tensor.requires_grad)

        self.args = mapped(args, as_leaf)
        self.step = _STEPS[dtype]
        self._apply = apply
        self._state = torch.get_rng_state()
        self._noise = torch.Generator().manual_seed(0)
        self._weights: list[torch.Tensor] = []

    @property
    def inputs(self) -> list[int]:
        """Places of the tensors that require a gradient."""
        return [i for i, tensor in enumerate(leaves(self.args)) if tensor.requires_grad]

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers of the size of those of a tensor."""
        size = tensor.detach().double().square().mean().sqrt().clamp_min(1e-3)
        drawn = torch.randn(tensor.shape, generator=self._noise, dtype=torch.float64, device="cpu")
        return (drawn.to(tensor.device) * size).to(tensor.dtype)

    def moved(self, *moves: tuple[int, torch.Tensor]) -> Any:
        """The arguments, some of them moved."""
        by_place: dict[int, torch.Tensor] = {}
        for place, by in moves:
            by_place[place] = by_place.get(place, 0) + by
        places = iter(range(len(list(leaves(self.args)))))

        def move(tensor: torch.Tensor) -> torch.Tensor:
            by = by_place.get(next(places))
            copy = tensor.detach().clone() if by is None else tensor.detach() + by
            return copy.requires_grad_(tensor.requires_grad)

        return mapped(self.args, move)

    def results(self, args: Any) -> list[torch.Tensor]:
        """The numbers that it returns."""
        torch.set_rng_state(self._state)
        with torch.enable_grad():  # some write into their inputs, which are no leaves then
            given = mapped(args, lambda t: t * 1 if t.requires_grad else t.clone())
            return [t for t in leaves(self._apply(*given)) if t.requires_grad]

    def gradients(self, args: Any) -> list[torch.Tensor]:
        """The gradients that its backward gives to the inputs, for fixed weights."""
        made = self.results(args)
        inputs = [tensor for tensor in leaves(args) if tensor.requires_grad]
        found = torch.autograd.grad(made, inputs, self.weights(made), allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found)]

    def weights(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not self._weights:
            self._weights = [
                torch.randn(r.shape, generator=self._noise, dtype=torch.float64, device="cpu")
                for r in results
            ]
        return [w.to(r.device, r.dtype) for w, r in zip(self._weights, results)]

    def slope(
        self, place: int, direction: torch.Tensor, *about: tuple[int, torch.Tensor]
    ) -> list[torch.Tensor]:
        """How the results follow an input. about: moves of inputs before."""
        up, down = (
            self.results(self.moved(*about, (place, direction * (side * self.step))))
            for side in (1, -1)
        )
        return [(a.detach() - b.detach()) / (2 * self.step) for a, b in zip(up, down)]


def _compared(trial: _Trial) -> Purpose:
    base = [result.detach() for result in trial.results(trial.args)]
    if not _are_equal(base, trial.results(trial.args)):
        return Purpose("returns something else when it is called again")
    places, claimed = trial.inputs, trial.gradients(trial.args)
    given = list(leaves(trial.args))
    is_wrong = False
    for place, gradient in zip(places, claimed):
        direction = trial.like(given[place])
        slope = trial.slope(place, direction)
        true = sum(float((w * s).sum()) for w, s in zip(trial.weights(slope), slope))
        said = float((gradient * direction).sum())
        if abs(true - said) <= _ERROR * max(abs(true), abs(said)):
            continue
        if any(_are_equal([given[place]], [result]) for result in base):
            return Purpose("returns its input")
        if _is_still(slope, gradient, direction, trial):
            return Purpose("returns what does not follow its input")
        if _is_stored(trial, base, claimed, place, direction, slope):
            return Purpose("returns a gradient that was given to it")
        is_wrong = True
    return Purpose(is_wrong=is_wrong)


def _is_still(
    slope: Sequence[torch.Tensor], gradient: torch.Tensor, direction: torch.Tensor, trial: _Trial
) -> bool:
    """Whether results stand still where the backward gives a gradient: they jump, or saturate."""
    count = sum(part.numel() for part in slope)
    if sum(int((part != 0).sum()) for part in slope) <= _STILL * count:
        return True
    if len(slope) != 1 or slope[0].shape != direction.shape:
        return False
    each = slope[0] / direction  # of a function of each element
    true = trial.weights(slope)[0] * each
    wrong = (gradient - true).abs() > _ERROR * torch.maximum(gradient.abs(), true.abs())
    return bool(wrong.any()) and not bool(slope[0][wrong].any())


def _is_stored(
    trial: _Trial,
    base: Sequence[torch.Tensor],
    claimed: Sequence[torch.Tensor],
    place: int,
    direction: torch.Tensor,
    slope: Sequence[torch.Tensor],
) -> bool:
    """Whether the gradient is not computed from what the result is computed from.

    It depends on an argument that the result does not depend on, or on no input, where the slope
    of the result does.
    """
    for other, tensor in enumerate(leaves(trial.args)):
        if tensor.requires_grad or not tensor.is_floating_point():
            continue
        args = trial.moved((other, _FAR * trial.like(tensor)))
        is_same = _are_equal(base, trial.results(args))
        if is_same and not _are_equal(claimed, trial.gradients(args)):
            return True
    given = list(leaves(trial.args))
    moves = [(each, _FAR * trial.like(given[each])) for each in trial.inputs]
    if not _are_equal(claimed, trial.gradients(trial.moved(*moves))):
        return False
    other_slope = trial.slope(place, direction, *moves)
    return any(
        bool(((a - b).abs() > _ERROR * a.abs().max()).any()) for a, b in zip(slope, other_slope)
    )


def _are_equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(bool(torch.equal(a, b)) for a, b in zip(first, second))


_MOST_BYTES = 1 << 28  # of inputs and results


class DivergedError(UnfitError):
    """A copy does not do what the recorded one did."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The substitute of a call in a moved copy.

    Attributes:
        name: of the class.
        results: those that require a gradient, in their order.
        gradients: that its backward has given for each tensor among its arguments.
        base: these gradients times the inputs that were not moved.
    """

    name: str
    results: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    base: float = 0.0

    def slope_to(self, args: Sequence[Any]) -> float:
        """The gradients times these inputs."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return sum(
            float((gradient.double() * tensor.detach().double()).sum())
            for gradient, tensor in zip(self.gradients, tensors)
            if gradient is not None
        )


@dataclass(slots=True)
class Used:
    """One call whose result requires a gradient.

    Attributes:
        name: of the class.
        apply: calls it again.
        args: copies of its arguments.
        results: copies of those that require a gradient, in their order.
        gradients: that its backward has given for each tensor among its arguments.
    """

    name: str
    apply: Callable[..., Any]
    args: tuple[Any, ...]
    results: list[torch.Tensor]
    gradients: list[torch.Tensor | None] = field(default_factory=list)

    def received(self, given: Sequence[torch.Tensor | None], _: Any) -> None:
        """A hook of its node: a backward pass went through it."""
        known = self.gradients or [None] * len(given)
        self.gradients = [
            new if old is None else old if new is None else old + new
            for old, new in zip(known, given)
        ]

    def replaced(self) -> Replaced:
        """For moved copies, after the backward pass."""
        gradients = [None if g is None else g.detach() for g in self.gradients]
        found = Replaced(self.name, self.results, gradients)
        return replace(found, base=found.slope_to(self.args))


class Functions:
    """Follows the calls that are running, and keeps what is known of each class.

    Args:
        on_segment: a segment is recomputed, with its random states or not.
        replaced: index of a call -> what is put in its place.

    Attributes:
        depth: number of running calls.
        classes: those that were called.
        nodes: the names of their nodes.
        used: the outermost calls, in their order.
        moved: by how much the replaced calls move the loss.
    """

    def __init__(
        self,
        on_segment: Callable[[bool], None] | None = None,
        replaced: Mapping[int, Replaced] | None = None,
    ) -> None:
        self.depth = 0
        self.classes: list[str] = []
        self.nodes: set[str] = set()
        self.used: list[Used] = []
        self.moved = 0.0
        self._on_segment = on_segment
        self._replaced = replaced
        self._count = 0
        self._bytes = 0

    def install(self) -> None:
        """Follow the calls; for a copy of the process, which ends anyway."""
        original: Any = inspect.getattr_static(torch.autograd.Function, "apply")

        @hidden
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            # As it is read in the class: static, of the class, in C or in Python.
            get = getattr(type(original), "__get__", None)
            bound = original if get is None else get(original, None, cls)
            given: tuple[Any, ...] = ()
            with torch._C.DisableTorchFunction():
                is_learned = not self.depth and torch.is_grad_enabled()
                if is_learned and any(t.requires_grad for t in leaves(args)):
                    self._take(args)
                    given = mapped(
                        args, lambda t: t.detach().clone().requires_grad_(t.requires_grad)
                    )
            self.depth += 1
            try:
                result = bound(*args, **kwargs)
            finally:
                self.depth -= 1
            return self._follow(cls, bound, given, result)

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]

    def purposes(self) -> dict[str, Purpose]:
        """Class -> whether its backward is that of its forward, by its first call."""
        found: dict[str, Purpose] = {}
        for used in self.used:
            if used.name not in found:
                self.depth += 1  # nothing in it is a constant
                found[used.name] = purpose_of(used.apply, used.args)
                self.depth -= 1
        return found

    def _take(self, value: Any) -> None:
        self._bytes += sum(t.numel() * t.element_size() for t in leaves(value))
        if self._bytes > _MOST_BYTES:
            raise DivergedError("the inputs of custom functions are too large to keep")

    def _follow(self, cls: type, apply: Any, args: tuple[Any, ...], result: Any) -> Any:
        name = cls.__qualname__
        self.nodes.add(f"{cls.__name__}Backward")
        if name == "CheckpointFunction":
            if self._on_segment is not None:
                self._on_segment(bool(args[1]) if args else True)
            return result
        if name not in self.classes:
            self.classes.append(name)
        made = [tensor for tensor in leaves(result) if tensor.requires_grad]
        if not args or not made:
            return result
        index, self._count = self._count, self._count + 1
        with torch._C.DisableTorchFunction():
            if self._replaced is not None:
                return self._exchanged(name, self._replaced.get(index), args, result)
            self._take(made)
            used = Used(name, apply, args, [tensor.detach().clone() for tensor in made])
            node: Any = made[0].grad_fn
            node.register_hook(used.received)
            self.used.append(used)
        return result

    def _exchanged(self, name: str, used: Replaced | None, args: Any, result: Any) -> Any:
        if used is None:
            return result
        if used.name != name:
            raise DivergedError("a moved copy calls other custom functions")
        self.moved += used.slope_to(args) - used.base
        values = iter(used.results)

        def recorded(tensor: torch.Tensor) -> torch.Tensor:
            return next(values).requires_grad_() * 1 if tensor.requires_grad else tensor

        return mapped(result, recorded)


MOST_BYTES = 1 << 28
_READ = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__bool__,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
    }
)
_CHUNK = 1 << 24


class Constants(TorchFunctionMode):
    """Records constants, or puts recorded ones back in the same order.

    Args:
        functions: the running calls of `autograd.Function`.
        recorded: the constants of another copy; None to record.
    """

    def __init__(self, functions: Functions, recorded: list[Any] | None = None) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.is_on = True  # no backward pass has begun
        self._functions = functions
        self._recorded: Iterator[Any] | None = None if recorded is None else iter(recorded)
        self.left = 0 if recorded is None else len(recorded)  # that were not put back yet
        self._bytes = 0

    @hidden
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            depends = self.is_on and any(t.requires_grad for t in leaves((args, kwargs)))
        result = func(*args, **kwargs)
        if not depends or self._functions.depth:
            return result
        if func in _READ:
            if self._recorded is not None:
                return self._next()
            self.found.append(result)
            return result
        if all(tensor.requires_grad for tensor in leaves(result)):
            return result
        return mapped(result, lambda tensor: self._constant(tensor, args, kwargs))

    def _constant(self, tensor: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
        if tensor.requires_grad:
            return tensor
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if self._recorded is None:
                self._bytes += tensor.numel() * tensor.element_size()
                if self._bytes > MOST_BYTES:
                    raise DivergedError("there are too many constants to keep")
                self.found.append(tensor.detach().clone())
                return tensor
            value = self._next()
            if not isinstance(value, torch.Tensor) or value.shape != tensor.shape:
                raise DivergedError("a moved copy does other operations")
            if any(tensor is given for given in leaves((args, kwargs))):  # in place
                tensor.copy_(value)
                return tensor
            return value

    def _next(self) -> Any:
        assert self._recorded is not None
        self.left -= 1
        if self.left < 0:
            raise DivergedError("a moved copy does more operations")
        return next(self._recorded)


def put(fd: int, value: Any) -> None:
    """Write a value into a file in memory that copies of the process share."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    left = memoryview(buffer.getbuffer())
    while left:
        left = left[_write(fd, left[:_CHUNK]) :]


def get(fd: int) -> Any:
    """The value that `put` has written."""
    lseek(fd, 0, 0)
    size, parts = fstat(fd).st_size, []
    while size:
        part = read(fd, min(size, _CHUNK))
        parts.append(part)
        size -= len(part)
    return torch.load(io.BytesIO(b"".join(parts)), weights_only=False)
