"""Calls of `autograd.Function` in a copy of the process, and those whose gradient is not compared.

The backward of some functions is another one on purpose: gradient reversal, straight-through
estimates, stored gradients of score distillation. Such a call is replaced in moved copies by what
its backward says: its result stays what it was, and the loss moves by the gradients of its inputs.
So the rest of the gradient is still compared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from traincheck.collect.probes.batch import leaves, mapped
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.purpose import Purpose, purpose_of
from traincheck.collect.trace_writer.emitter import hidden

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
            given = self._copied(args) if not self.depth else ()
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

    def _copied(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunction():
            if not torch.is_grad_enabled() or not any(t.requires_grad for t in leaves(args)):
                return ()
            self._take(args)
            copies: tuple[Any, ...] = mapped(
                args, lambda t: t.detach().clone().requires_grad_(t.requires_grad)
            )
            return copies

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
