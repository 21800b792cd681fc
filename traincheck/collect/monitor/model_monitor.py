"""Measures one model that is given by its modules, in steps that the caller begins and ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from traincheck.collect.monitor.attention import Attention, by_head, by_heads
from traincheck.collect.monitor.coordinate_check import CoordinateCheck
from traincheck.collect.monitor.functions import FunctionMetric, FunctionMetrics
from traincheck.collect.monitor.measure import Measure
from traincheck.collect.monitor.module_hooks import ModuleHooks
from traincheck.collect.monitor.numbers import leaves, leaves_beside
from traincheck.collect.monitor.reference import Reference, devices_of, kept_random_state
from traincheck.collect.tensors.sums import is_hidden

Named = list[tuple[str, Any]]


class ModelMonitor:
    """The numbers of the step that is measured.

    Args:
        model: the model.
        named: name and module of its parts that are measured.
        metrics: kind of tensor -> metrics by name; may grow.
        on_failure: called with metric, name and error, once for each metric.
        fault: counts a failure of ours.
        measure: takes sums of the same tensors, if any are requested.

    Attributes:
        values: the values of the step.
        evaluation: those of forwards without gradients, in a step that has others.
        is_paused: whether forwards are not measured now.
        reference: the model to compare with.
        check: the refined coordinate check.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        named: Iterable[tuple[str, torch.nn.Module]],
        metrics: Mapping[str, dict[str, FunctionMetric]],
        *,
        on_failure: Callable[[str, str, Exception], None],
        fault: Callable[[Exception], None],
        measure: Measure | None = None,
    ) -> None:
        self.model = model
        self._metrics = metrics
        self._on_failure, self._fault = on_failure, fault
        self.values = FunctionMetrics(on_failure)
        self.evaluation = FunctionMetrics(on_failure)
        self.is_paused = False
        self.reference: Reference | None = None
        self.check: CoordinateCheck | None = None
        self._devices = devices_of(model)
        self._named = list(named)
        self._measure = measure
        self._is_training = True
        self._depth = 0
        self._hooks = ModuleHooks(
            self._with_model(), entered=self._entered, left=self._left, fault=fault
        )
        self._names = {id(module): name for name, module in self._named}

    def _with_model(self) -> list[tuple[str, torch.nn.Module]]:
        """The whole model is hooked, too: it begins and ends a forward."""
        if any(module is self.model for _, module in self._named):
            return self._named
        return [("", self.model), *self._named]

    @property
    def is_in_reference(self) -> bool:
        """Whether the reference runs now."""
        return self.reference is not None and self.reference.is_running

    def attach(self) -> None:
        """A step begins that is measured."""
        self._depth = 0
        self._devices = devices_of(self.model)
        measures_inputs = self._measure is not None and self._measure.measures_inputs
        enters_all = measures_inputs or self.check is not None
        self._hooks.attach(None if enters_all else self.model)
        if self.reference is not None:
            self.reference.attach()

    def detach(self) -> None:
        """It has ended."""
        self._hooks.detach()
        if self.reference is not None:
            self.reference.detach()

    def compare_with(
        self,
        module: torch.nn.Module | None,
        named: Iterable[tuple[str, torch.nn.Module]] = (),
        *,
        offload: bool = False,
    ) -> None:
        """Set the reference, or remove it."""
        if self.reference is not None:
            self.reference.detach()
        self.reference = self.check = None
        if module is not None:
            self.reference = Reference(module, named, fault=self._fault, offload=offload)

    def check_coordinates(self) -> CoordinateCheck:
        """Begin the refined coordinate check. There is a reference."""
        if self.check is None and self.reference is not None:
            self.check = CoordinateCheck(self.reference, FunctionMetrics(self._on_failure))
            if self._hooks.is_attached:  # a step goes on: every call is announced from now on
                self._hooks.detach()
                self._hooks.attach()
        assert self.check is not None
        return self.check

    # -- forwards

    def _entered(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if module is self.model:
            self._depth += 1
            if self._depth == 1:
                self._is_training = torch.is_grad_enabled()
                self._run_reference(args, kwargs)
        if self.check is not None and self._is_checked():
            self.check.entered(name, module)
        measure = self._measure
        if measure is not None and measure.measures_inputs and not self.is_paused:
            measure.inputs(name, args, kwargs, is_training=self._is_training)

    def _is_checked(self) -> bool:
        return self._is_training and not self.is_paused

    def _run_reference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the reference, unless the program has done so for this forward."""
        reference = self.reference
        if reference is None or not self._is_checked() or reference.outputs:
            return
        differs = self._measure is not None and self._measure.plan.has("activation_difference")
        if self.check is None and not differs and not self._metrics.get("activation_difference"):
            return
        reference.run(self.model, args, kwargs)

    def _left(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        if id(module) in self._names and not self.is_paused and not is_hidden():
            values = self.values if self._is_training else self.evaluation
            metrics = self._metrics["activation"]
            if self._measure is not None:
                training = self._is_training
                self._measure.call(name, args, kwargs, result, is_training=training)
            if not metrics and self.reference is None:
                return self._ended(module)
            with kept_random_state(self._devices):  # a metric may draw random numbers
                if type(result) is torch.Tensor:  # the usual case
                    self.activation(name, result, values)
                elif metrics:
                    leaves(result, name, lambda n, t: self.activation(n, t, values))
                self._compare(name, module, args, kwargs, result)
        self._ended(module)

    def _ended(self, module: torch.nn.Module) -> None:
        if module is self.model:
            self._depth -= 1
            if not self._depth and self.reference is not None and self._is_training:
                self.reference.clear()

    def activation(
        self, name: str, tensor: torch.Tensor, values: FunctionMetrics | None = None
    ) -> None:
        """Run the metrics of activations on a tensor."""
        values = self.values if values is None else values
        metrics = self._metrics["activation"]
        values.run("activation", name, metrics, tensor, weight=float(tensor.numel() or 1))

    def _compare(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Compare a call with that of the reference."""
        reference = self.reference
        if reference is None or not self._is_training:
            return
        initial, first = reference.next(name)
        if self.check is not None:
            self.check.left(name, module, args, kwargs, result, initial, first)
        if initial is not None:
            leaves_beside(result, initial, name, self.difference)

    def difference(self, name: str, tensor: torch.Tensor, other: torch.Tensor | None) -> None:
        """Run the metrics of differences on an activation and that of the reference."""
        if other is None or other.shape != tensor.shape:
            return
        if self._measure is not None:
            self._measure.difference("activation_difference", name, tensor, other)
        self.values.run(
            "activation_difference",
            name,
            self._metrics["activation_difference"],
            tensor if tensor.device == other.device else tensor.detach().to(other.device),
            other,
            weight=float(tensor.numel() or 1),
        )

    def attention(
        self, name: str, given: tuple[Any, ...], result: Any, *, with_entropy: bool
    ) -> list[tuple[str, torch.Tensor]]:
        """Log the entropy of each head of a call. Returns name and tensor of its parts.

        Args:
            name: of the module that calls.
            given: arguments of ``scaled_dot_product_attention``, as it has them.
            result: what it returned, or None.
            with_entropy: whether the entropy is logged.
        """
        call = Attention.of(*given)
        if call is None:
            return []
        if with_entropy:
            for head, values in by_head(call.entropy()):
                if values.numel():
                    self.values.log(f"attention_entropy/{name}.head_{head}", values)
        tensors = {"query": call.query, "key": call.key, "value": call.value, "activation": result}
        return [
            (f"{name}.head_{head}.{part}", by_heads(tensor.detach())[:, head])
            for head in range(call.heads)
            for part, tensor in tensors.items()
            if tensor is not None
        ]

    # -- variables

    def parameters(self, named: Named, references: Mapping[str, torch.Tensor]) -> None:
        """Run the metrics of parameters, and of their differences to those of the reference."""
        with kept_random_state(self._devices):
            for name, parameter in named:
                self.values.run("parameter", name, self._metrics["parameter"], parameter)
                other = references.get(name)
                if other is not None:
                    if self._measure is not None:
                        self._measure.difference("parameter_difference", name, parameter, other)
                    metrics = self._metrics["parameter_difference"]
                    self.values.run("parameter_difference", name, metrics, parameter, other)

    def gradients(self, named: Named, subject: str, scale: Any = None) -> int:
        """Run the metrics of gradients. Returns how many parameters have none.

        Args:
            named: name and parameter.
            subject: "gradient" or "gradient_before_clip".
            scale: what the gradients are to be divided by; None for nothing.
        """
        missing = 0
        with kept_random_state(self._devices):
            for name, parameter in named:
                gradient = parameter.grad
                if gradient is None:
                    missing += 1
                    continue
                if scale is not None:
                    gradient = gradient.detach() / scale
                self.values.run(subject, name, self._metrics["gradient"], gradient)
        return missing


def compiled(regex: str) -> re.Pattern[str]:
    """A regular expression of names."""
    return re.compile(regex)
