"""Take the numbers of one step: of module calls, and of variables around optimizer steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from traincheck.collect.monitor.numbers import StepNumbers, leaves
from traincheck.collect.monitor.records import Plan
from traincheck.collect.tensors.reading import (
    as_plain,
    detached,
    gradient_of,
    is_a,
    is_opaque,
    own,
    requires_grad,
    state_of,
)
from traincheck.collect.tensors.sums import Taken, is_hidden, local_part, sums_of, why_not
from traincheck.handlers import give_back
from traincheck.schema.metrics.requests import DIMENSIONS, MetricRequest
from traincheck.schema.metrics.sums import sharded

_MOST_SLICES = 4096  # indices of one dimension that are measured

Named = Iterable["tuple[str, torch.Tensor]"]


class Measure:
    """Measures tensors as a plan says.

    Args:
        plan: the requests.
        fault: counts a failure of ours.

    Attributes:
        training: numbers of forwards with gradients, and of variables.
        evaluation: numbers of forwards without.
        scale: what gradients are multiplied by, by a GradScaler.
    """

    def __init__(self, plan: Plan, fault: Callable[[Any, BaseException], None]) -> None:
        self.plan = plan
        self._fault = fault
        self.training = StepNumbers()
        self.evaluation = StepNumbers()
        self.scale: Any = None
        self._before: dict[int, torch.Tensor] = {}
        self._gradients: list[tuple[str, Taken]] = []
        self._measures_inputs = plan.has("input")
        self._measures_gradients = plan.has("activation_gradient")

    # -- module calls

    def call(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        is_training: bool,
    ) -> None:
        """A module returned. Called before anything changes its output in place."""
        if is_hidden():
            return
        numbers = self.training if is_training else self.evaluation
        plan = self.plan
        columns = plan.columns("activation", name)
        if columns is not None:
            if type(result) is torch.Tensor:  # the usual case
                numbers.add(f"activation/{name}", result, columns)
            else:
                leaves(result, name, _adder("activation", numbers, columns))
        self._slices("activation", name, result, numbers)
        if self._measures_gradients and is_training:
            wanted = plan.columns("activation_gradient", name)
            if wanted is not None:
                leaves(result, name, lambda leaf, tensor: self._hook(leaf, tensor, wanted))

    def inputs(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_training: bool,
    ) -> None:
        """A module is about to be called. Afterwards its inputs may have changed in place."""
        columns = self.plan.columns("input", name)
        if columns is None or is_hidden():
            return
        take = _adder("input", self.training if is_training else self.evaluation, columns)
        if len(args) == 1 and not kwargs:
            leaves(args[0], name, take)
            return
        for index, value in enumerate(args):
            leaves(value, f"{name}[{index}]", take)
        for key, value in kwargs.items():
            leaves(value, f"{name}[{key}]", take)

    def difference(
        self, subject: str, name: str, tensor: torch.Tensor, other: torch.Tensor
    ) -> None:
        """Measure the difference of a tensor and another one of its shape."""
        columns = self.plan.columns(subject, name)
        if columns is None or is_hidden():
            return
        if why_not(local_part(tensor)[0]) is None:
            moved = tensor.detach() - other.detach().to(tensor.device)
            self.training.add(f"{subject}/{name}", moved, columns)

    @property
    def measures_inputs(self) -> bool:
        """Whether inputs of modules are requested."""
        return self._measures_inputs

    def _slices(self, subject: str, name: str, value: Any, numbers: StepNumbers) -> None:
        for request in self.plan.sliced(subject, name):
            leaves(value, name, _slicer(subject, request, numbers))

    def _hook(self, name: str, tensor: torch.Tensor, columns: frozenset[str]) -> None:
        """Measure the gradient of an output when backward computes it."""
        if is_opaque(type(tensor)) or tensor.grad_fn is None or why_not(local_part(tensor)[0]):
            return

        def take(gradient: torch.Tensor) -> None:
            try:
                gradient, _ = local_part(gradient)
                if not is_hidden() and why_not(gradient) is None:
                    self._gradients.append((name, sums_of(gradient, columns)))
            except Exception as error:  # training must go on whatever we got wrong
                give_back(error)
                self._fault(self._hook, error)

        # Like ``tensor.register_hook``, without taking a number of the program's handles.
        hooks: Any = tensor._backward_hooks
        if hooks is None:
            hooks = tensor._backward_hooks = OrderedDict()
            tensor.grad_fn._register_hook_dict(tensor)
        hooks[take] = take

    # -- variables

    def before_update(self, optimizer: Any, named: Named) -> None:
        """An optimizer is about to step: measure its parameters and their gradients."""
        if is_hidden():
            return
        self._before.clear()
        scale = _scale_inside(optimizer)
        plan, numbers = self.plan, self.training
        done: dict[int, str] = {}
        for name, parameter in named:
            columns = plan.columns("parameter", name)
            self._variable("parameter", name, parameter, columns)
            gradient = gradient_of(parameter)
            if gradient is not None:
                self._gradient("gradient", name, gradient, scale)
            if id(parameter) not in done and gradient is not None:
                done[id(parameter)] = name
                self._keep(name, parameter)
        for name in self.missing(named):
            numbers.skipped.setdefault(f"gradient/{name}", "no gradient")

    def missing(self, named: Named) -> list[str]:
        """Names of parameters whose gradient is requested and None."""
        if not self.plan.has("gradient"):
            return []
        return [n for n, p in named if gradient_of(p) is None and self.plan.columns("gradient", n)]

    def parameters(self, named: Named) -> None:
        """Measure parameters now."""
        if not is_hidden():
            for name, parameter in named:
                self._variable("parameter", name, parameter, self.plan.columns("parameter", name))

    def gradients(self, named: Named, subject: str = "gradient") -> None:
        """Measure gradients now. subject: "gradient" or "gradient_before_clip"."""
        if is_hidden():
            return
        for name, parameter in named:
            if parameter.grad is not None:
                self._gradient(subject, name, parameter.grad, None)

    def after_update(self, optimizer: Any, named: Named) -> None:
        """An optimizer has stepped: measure what changed, and its state."""
        before, self._before = self._before, {}
        if is_hidden():
            return
        with_state = self.plan.has("optimizer_state")
        moved: dict[int, torch.Tensor | None] = {}  # tied parameters are subtracted once
        for name, parameter in named:
            key = id(parameter)
            if key in before and key not in moved:
                moved[key] = _subtracted(parameter, before[key])
            if (difference := moved.get(key)) is not None:
                self._update(name, parameter, difference)
            if with_state:
                self._state(name, state_of(optimizer, parameter) or {})

    def end_backward(self) -> None:
        """Add the gradients of activations, divided by the scale of the loss."""
        found, self._gradients = self._gradients, []
        factor = 1.0 / self.scale if self.scale else 1.0
        for name, taken in found:
            self.training.add_sums(f"activation_gradient/{name}", taken, factor)

    def forget_update(self) -> None:
        """Drop the copies of parameters: the update did not come, or the step is over."""
        self._before.clear()

    def _variable(
        self, subject: str, name: str, tensor: torch.Tensor, columns: frozenset[str] | None
    ) -> None:
        if columns is not None and f"{subject}/{name}" not in self.training.sums:
            self.training.add(f"{subject}/{name}", tensor, columns)
        self._slices(subject, name, tensor, self.training)

    def _gradient(self, subject: str, name: str, gradient: torch.Tensor, scale: Any) -> None:
        columns = self.plan.columns(subject, name)
        if columns is None:
            return
        if scale is not None:  # a fused optimizer divides inside its step
            gradient = as_plain(gradient).detach() / scale
        self.training.add(f"{subject}/{name}", gradient, columns)
        self._slices(subject, name, gradient, self.training)

    def _keep(self, name: str, parameter: torch.Tensor) -> None:
        if self.plan.columns("update", name) is not None and requires_grad(parameter):
            local = detached(local_part(parameter)[0])
            if why_not(local) is None:
                self._before[id(parameter)] = local.clone()

    def _update(self, name: str, parameter: torch.Tensor, difference: torch.Tensor) -> None:
        columns = self.plan.columns("update", name)
        if columns is None:
            return
        if copies := local_part(parameter)[1]:
            self.training.combine[f"update/{name}"] = sharded(copies)
        self.training.add(f"update/{name}", difference, columns)

    def _state(self, name: str, state: Mapping[str, Any]) -> None:
        columns = self.plan.columns("optimizer_state", name)
        if columns is None:
            return
        for key, value in state.items():
            if is_a(value, torch.Tensor) and as_plain(value).dim():  # not the counter of steps
                self.training.add(f"optimizer_state/{name}.{key}", value, columns)


def _adder(
    subject: str, numbers: StepNumbers, columns: frozenset[str]
) -> Callable[[str, torch.Tensor], None]:
    return lambda name, tensor: numbers.add(f"{subject}/{name}", tensor, columns)


def _slicer(
    subject: str, request: MetricRequest, numbers: StepNumbers
) -> Callable[[str, torch.Tensor], None]:
    return lambda name, tensor: _slice(subject, name, tensor, request, numbers)


def _slice(
    subject: str, name: str, tensor: torch.Tensor, request: MetricRequest, numbers: StepNumbers
) -> None:
    """The sums of each index of one dimension."""
    local, copies = local_part(tensor)
    if why_not(local) is not None or local.dim() <= 1:
        return
    if copies:  # an index of a part is another one of the whole
        numbers.skipped[f"{subject}/{name}.{request.per}"] = "a shard of a distributed tensor"
        return
    parts = local.detach().unbind(DIMENSIONS[request.per])[:_MOST_SLICES]
    for index, part in enumerate(parts):
        numbers.add(f"{subject}/{name}.{request.per}_{index}", part, request.columns)


def _subtracted(parameter: torch.Tensor, old: torch.Tensor) -> torch.Tensor | None:
    """The change of a parameter, in the memory of its copy; None if it is another tensor."""
    now = detached(local_part(parameter)[0])
    if now.shape != old.shape or now.device != old.device:
        return None
    return torch.sub(now, old, out=old)


def _scale_inside(optimizer: Any) -> Any:
    """The factor of the gradients that a fused optimizer gets."""
    scale = own(optimizer).get("grad_scale")
    return scale if is_a(scale, torch.Tensor) else None
