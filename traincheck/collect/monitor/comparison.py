"""Compares the models of an unedited program with copies of them, or with weights of a file.

The copy is made when a model is first called in a measured step. It runs directly before the model,
on copies of its arguments. Random generators are put back, so training is bit-identical.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as trees

from traincheck.collect.monitor.coordinate_check import CoordinateCheck
from traincheck.collect.monitor.functions import FunctionMetrics
from traincheck.collect.monitor.measure import Measure
from traincheck.collect.monitor.numbers import StepNumbers, leaves_beside
from traincheck.collect.monitor.reference import Reference
from traincheck.collect.tensors.sums import local_part
from traincheck.handlers import give_back
from traincheck.schema.metrics.requests import INITIAL, MonitorView

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class ComparisonError(Exception):
    """Why a model has no reference, or why it cannot run."""


class Comparisons:
    """The references of all models of a program.

    Args:
        view: with a reference.
        measure: takes the differences.
        named: path of a module, or None; called while no module of its model runs.
        failed: called with what failed, on which model, and the error; once for each model.
    """

    def __init__(
        self,
        view: MonitorView,
        measure: Measure,
        named: Callable[[torch.nn.Module], str | None],
        failed: Callable[[str, str, Exception], None],
    ) -> None:
        self._view, self._measure = view, measure
        self._named, self._failed = named, failed
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], Comparison | None]] = {}
        self._terms = FunctionMetrics(failed)

    def begin(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Comparison | None:
        """A model is about to be called, with gradients: run its reference. None without one."""
        if next(model.parameters(), None) is None:  # such as a loss
            return None
        comparison = self._of(model)
        if comparison is None:
            return None
        try:
            comparison.begin(*copied((args, kwargs)))
        except Exception as error:  # training must go on whatever the model does with a copy
            give_back(error)
            self._leave_out(model, error)
            return None
        return comparison

    def _of(self, model: torch.nn.Module) -> Comparison | None:
        known = self._known.get(id(model))
        if known is not None and known[0]() is model:
            return known[1]
        made = None
        try:
            made = Comparison(model, self._initial(model), self)
        except Exception as error:  # training must go on whatever a copy does
            give_back(error)
            self._leave_out(model, error)
        key = id(model)
        gone = weakref.ref(model, lambda _: self._known.pop(key, None))
        self._known[key] = gone, made
        return made

    def _leave_out(self, model: torch.nn.Module, error: Exception) -> None:
        name = self._named(model) or type(model).__name__
        known = self._known.get(id(model))
        if known is not None:
            self._known[id(model)] = known[0], None
        self._failed("reference", name, error)

    def _initial(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model to compare with, in the modes of the model.

        Raises:
            ComparisonError: parts of the model are on other ranks.
            Exception: the model cannot be copied, or the file is not one of its weights.
        """
        if any(local_part(p.detach())[1] for p in model.parameters()):
            raise ComparisonError("its parameters are shards, of which a rank has only a part")
        made = copy.deepcopy(model)
        if self._view.reference != INITIAL:
            _load(made, self._view.reference)
        made.requires_grad_(False)
        return made

    def parts(self, model: torch.nn.Module, other: torch.nn.Module) -> dict[str, torch.nn.Module]:
        """The parts of a reference, by the path of the same part of its model."""
        pairs = zip(model.modules(), other.modules(), strict=True)
        return {name: there for here, there in pairs if (name := self._named(here)) is not None}

    def reference(self, model: torch.nn.Module, parts: Mapping[str, torch.nn.Module]) -> Reference:
        """A runner of a reference."""

        def fault(error: Exception) -> None:
            self._failed("reference", type(model).__name__, error)

        return Reference(model, parts.items(), fault=fault)

    def check(self, reference: Reference) -> CoordinateCheck | None:
        """The refined coordinate check, if it is asked for."""
        if not self._view.coordinates:
            return None
        return CoordinateCheck(reference, self._terms, self._measure.plan.includes)

    def difference(self, name: str, tensor: torch.Tensor, other: torch.Tensor | None) -> None:
        """Measure the difference of an output and that of the reference."""
        if other is not None and other.shape == tensor.shape:
            self._measure.difference("activation_difference", name, tensor, other)

    def parameters(self, named: list[tuple[str, torch.Tensor]]) -> None:
        """Measure the differences of parameters."""
        others: dict[str, torch.Tensor] = {}
        for _, comparison in self._known.values():
            if comparison is not None:
                others |= comparison.variables()
        for name, parameter in named:
            other = others.get(name)
            if other is not None and other.shape == parameter.shape:
                self._measure.difference("parameter_difference", name, parameter, other)

    def hand_over(self, numbers: StepNumbers) -> None:
        """Move the terms of the coordinate check to the numbers of the step."""
        numbers.values.update(self._terms.take_weighted())


class Comparison:
    """One model and its reference.

    Args:
        model: the model.
        initial: the reference; another object of the same class.
        owner: has the references of all models.
    """

    def __init__(
        self, model: torch.nn.Module, initial: torch.nn.Module, owner: Comparisons
    ) -> None:
        self._model, self._owner = weakref.ref(model), owner
        self._reference = owner.reference(initial, owner.parts(model, initial))
        self._check = owner.check(self._reference)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the reference on these arguments."""
        model = self._model()
        if model is not None:
            self.end()
            self._reference.attach()
            self._reference.run(model, args, kwargs)

    def entered(self, name: str, module: torch.nn.Module) -> None:
        """A part of the model is about to be called."""
        if self._check is not None:
            self._check.entered(name, module)

    def left(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """It has returned."""
        initial, first = self._reference.next(name)
        if self._check is not None:
            self._check.left(name, module, args, kwargs, result, initial, first)
        if initial is not None:
            leaves_beside(result, initial, name, self._owner.difference)

    def end(self) -> None:
        """The call of the model is over, also by an exception."""
        self._reference.detach()
        if self._check is not None:
            self._check.forget()

    def variables(self) -> dict[str, torch.Tensor]:
        """The parameters of the reference, by their paths in the model."""
        return {
            f"{name}.{own}": parameter
            for name, part in self._reference.parts.items()
            for own, parameter in part._parameters.items()
            if parameter is not None
        }


def copied(value: Any) -> Any:
    """Arguments that a second forward may change: tensors and containers are copied.

    Raises:
        Exception: an object in them cannot be copied.
    """
    flat, form = trees.tree_flatten(value)
    return trees.tree_unflatten([_copied_leaf(one) for one in flat], form)


def _copied_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (*_PLAIN, torch.nn.Module)) or callable(value):
        return value
    return copy.deepcopy(value)


def _load(model: torch.nn.Module, path: str) -> None:
    """Load the weights of a file. Runs no code of it.

    Raises:
        ComparisonError: it has weights of another model.
        Exception: it cannot be read.
    """
    found = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    if not isinstance(found, dict):
        raise ComparisonError(f"{path} is not a state dict")
    missing, unexpected = model.load_state_dict(found, strict=False)
    if missing or unexpected:
        raise ComparisonError(
            f"{path} has the weights of another model: {len(missing)} are missing, such as "
            f"{(*missing, *unexpected)[0]!r}, and {len(unexpected)} are not known"
        )
