"""Compares the models of an unedited program with copies of them, or with weights of a file.

The copy is made when a model is first called in a measured step. It runs directly before the model,
on copies of its arguments. Random generators are put back, so training is bit-identical.
"""

from __future__ import annotations

import copy
import gc
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as trees

from traincheck.collect.monitor.coordinate_check import CoordinateCheck
from traincheck.collect.monitor.functions import FunctionMetrics
from traincheck.collect.monitor.measure import Measure
from traincheck.collect.monitor.numbers import StepNumbers, leaves_beside
from traincheck.collect.monitor.reference import Reference, copy_of
from traincheck.collect.tensors.reading import modules_in, table_of, tensors_in
from traincheck.collect.tensors.sums import local_part
from traincheck.handlers import give_back
from traincheck.schema.metrics.requests import INITIAL, MonitorView

_Get: TypeAlias = "Callable[[], Comparison | None]"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_MOST_SEARCHED = 1 << 17


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
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], _Get]] = {}
        self._terms = FunctionMetrics(failed)

    def begin(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Comparison | None:
        """A model is about to be called, with gradients: run its reference. None without one."""
        if next(tensors_in(model), None) is None:  # such as a loss
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
            return known[1]()
        made: Comparison | None = None
        get: _Get = _no_comparison
        try:
            made = Comparison(model, self._initial(model), self)
            get = weakref.ref(made)  # the caller holds it until it has run
        except Exception as error:  # training must go on whatever a copy does
            give_back(error)
            self._leave_out(model, error)
        key = id(model)
        gone = weakref.ref(model, lambda _: self._known.pop(key, None))
        self._known[key] = gone, get
        return made

    def keep(self, made: Comparison, model: torch.nn.Module) -> None:
        """Keep a comparison that has run for the first time."""
        known = self._known.get(id(model))
        if known is None or known[1]() is not made:
            return
        try:
            self._known[id(model)] = known[0], _kept(made, model)
        except Exception as error:  # training must go on whatever a copy does
            give_back(error)
            self._leave_out(model, error)

    def _leave_out(self, model: torch.nn.Module, error: Exception) -> None:
        name = self._named(model) or type(model).__name__
        known = self._known.get(id(model))
        if known is not None:
            self._known[id(model)] = known[0], _no_comparison
        self._failed("reference", name, error)

    def _initial(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model to compare with, in the modes of the model.

        Raises:
            ComparisonError: parts of the model are on other ranks, or a copy leads back to it.
            Exception: the model cannot be copied, or the file is not one of its weights.
        """
        if any(local_part(p.detach())[1] for p in tensors_in(model)):
            raise ComparisonError("its parameters are shards, of which a rank has only a part")
        made = copy.deepcopy(model)
        _cut_off(made, model)
        if self._view.reference != INITIAL:
            _load(made, self._view.reference)
        made.requires_grad_(False)
        return made

    def parts(self, model: torch.nn.Module, other: torch.nn.Module) -> dict[str, torch.nn.Module]:
        """The parts of a reference, by the path of the same part of its model."""
        pairs = zip(modules_in(model), modules_in(other), strict=True)
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
        for _, get in self._known.values():
            if (comparison := get()) is not None:
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
        self._is_kept = False

    def __reduce__(self) -> Any:
        return str, ()  # the class that holds it may be pickled by value

    @property
    def initial(self) -> torch.nn.Module:
        """The reference."""
        return self._reference.module

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the reference on these arguments."""
        model = self._model()
        if model is not None:
            self._forget()
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
        self._forget()
        model = self._model()
        if model is not None and not self._is_kept:
            self._is_kept = True
            self._owner.keep(self, model)

    def _forget(self) -> None:
        self._reference.detach()
        if self._check is not None:
            self._check.forget()

    def variables(self) -> dict[str, torch.Tensor]:
        """The parameters of the reference, by their paths in the model."""
        return {
            f"{name}.{own}": parameter
            for name, part in self._reference.parts.items()
            for own, parameter in table_of(part, "_parameters").items()
            if parameter is not None
        }


def _cut_off(made: torch.nn.Module, model: torch.nn.Module) -> None:
    """Take hooks out of a copy that lead to the model: a copy of a function is the function itself.

    They would be called for the copy as well. Nor would the model be freed.

    Raises:
        ComparisonError: something else of the copy leads to the model.
    """
    parts = set(map(id, model.modules()))
    for part in made.modules():
        for hooks in [held for name, held in vars(part).items() if name.endswith("_hooks")]:
            for key, hook in list(hooks.items()) if isinstance(hooks, dict) else ():
                if _leads(hook, parts):
                    del hooks[key]
    if _leads(made, parts):
        raise ComparisonError("a function in it refers to the model itself, and so does its copy")


def _kept(made: Comparison, model: torch.nn.Module) -> _Get:
    """A function that gives a comparison that has run, and None once its model is gone.

    An object of a copy has the class of the original. A class that is defined in a function may
    lead to the model, so that this would never be freed. Then the class holds the comparison.

    Raises:
        ComparisonError: its forward has led the copy to the model, such as by a global variable.
    """
    cls = _way(made.initial, set(map(id, model.modules())))
    if cls is None:
        return lambda: made
    if not isinstance(cls, type):
        raise ComparisonError("its forward keeps what refers to the model itself")
    attribute = f"_traincheck_{id(made)}"
    setattr(cls, attribute, made)
    weakref.finalize(model, _delete, weakref.ref(cls), attribute).atexit = False
    return weakref.ref(made)


def _delete(ref: weakref.ref[type], attribute: str) -> None:
    cls = ref()
    if cls is not None:
        delattr(cls, attribute)


def _no_comparison() -> None:
    """Stands for a model without a reference."""


def _leads(start: Any, targets: set[int]) -> bool:
    """Whether an object refers to another one, directly or not, other than by its class."""
    return _way(start, targets, by_class=False) is not None


def _way(start: Any, targets: set[int], *, by_class: bool = True) -> Any:
    """By what an object refers to another one: the first class of a function, or the object itself.

    None if it does not. A class that leads too far to tell counts; one of a module does not.
    """
    seen, left = {id(start)}, [(start, start)]
    while left:
        held, way = left.pop()
        for found in gc.get_referents(held):
            if id(found) in targets:
                return way
            if id(found) in seen or not gc.is_tracked(found):
                continue
            seen.add(id(found))
            is_class = isinstance(found, type)
            if is_class and not (by_class and _is_local(found)):
                continue
            # Not the globals of a function: these are not of the model
            if isinstance(found, types.ModuleType) or (
                type(found) is dict and "__builtins__" in found
            ):
                continue
            left.append((found, found if is_class and way is start else way))
        if len(seen) >= _MOST_SEARCHED:
            return next((way for _, way in left if way is not start), None)
    return None


def _is_local(cls: type) -> bool:
    """Whether a class is not the one of this name in its module, as one that a function defines."""
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is not cls


def copied(value: Any) -> Any:
    """Arguments that a second forward may change: tensors and containers are copied.

    Raises:
        Exception: an object in them cannot be copied.
    """
    flat, form = trees.tree_flatten(value)
    return trees.tree_unflatten([_copied_leaf(one) for one in flat], form)


def _copied_leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return copy_of(value)
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
