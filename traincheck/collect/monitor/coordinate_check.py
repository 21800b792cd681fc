"""The refined coordinate check: how much a layer's output moves by its weights, and by its input.

The difference of the outputs of a layer at step t and at initialization is (W_t - W_0) x_t +
W_0 (x_t - x_0). The layer at initialization is applied to the input of the layer that trains,
directly after that, with the same random numbers and without updating statistics. So the first term
is exactly 0 while the weights are those of the initialization, also with dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as trees

from traincheck.collect.monitor.functions import FunctionMetrics
from traincheck.collect.monitor.reference import (
    Reference,
    copy_of,
    own_graph,
    same_modes,
    unchanged,
)
from traincheck.collect.tensors.reading import table_of

_WEIGHTS = "RCC (W_t-W_0)x_t"
_INPUTS = "RCC W_0(x_t-x_0)"
_NORM = "l2norm"


class CoordinateCheck:
    """Takes the terms of each layer, which has parameters itself.

    Args:
        reference: the model at initialization; its forward runs before that of the model.
        terms: collects the numbers.
        includes: whether a layer is checked, by its name; None for all.

    Attributes:
        terms: the numbers so far.
    """

    def __init__(
        self,
        reference: Reference,
        terms: FunctionMetrics,
        includes: Callable[[str], bool] | None = None,
    ) -> None:
        self._reference = reference
        self._includes = includes
        self.terms = terms
        self._states: list[torch.Tensor] = []
        reference.keeps_inputs = True

    def entered(self, name: str, module: torch.nn.Module) -> None:
        """A layer is about to be called: its random numbers begin here."""
        if is_layer(module):
            self._states.append(torch.default_generator.get_state())

    def forget(self) -> None:
        """The forward is over, also by an exception."""
        self._states.clear()

    def left(
        self,
        name: str,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        initial: Any,
        first: torch.Tensor | None,
    ) -> None:
        """A layer was called.

        Args:
            name: of the layer.
            module: the layer.
            args: its arguments.
            kwargs: its keyword arguments.
            result: what it returned.
            initial: what the reference returned for its own input; None if unknown.
            first: the input of the reference.
        """
        if not is_layer(module):
            return
        state = self._states.pop()
        layer = self._reference.parts.get(name)
        if layer is None or not (self._includes is None or self._includes(name)):
            return
        own_args, own_kwargs = trees.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
        with own_graph(), unchanged(layer), same_modes(layer, module):
            torch.default_generator.set_state(state)
            moved = layer(*own_args, **own_kwargs)
        now, then, before = _tensor(result), _tensor(moved), _tensor(initial)
        if now is None or then is None:
            return
        self._log(f"{_WEIGHTS}/{name}", now - then)
        if isinstance(module, torch.nn.Embedding):
            return
        given = args[0] if args else next(iter(kwargs.values()), None)
        x = _tensor(given)
        if before is not None and before.shape == then.shape:
            self._log(f"{_INPUTS}/{name}", then - before.to(then.device))
        if x is not None:
            self._log(f"RCC x_t/{name}", x)
            if first is not None and first.shape == x.shape:
                self._log(f"RCC (x_t-x_0)/{name}", x - first.to(x.device))
        self._without_bias(name, module, layer, now, then, before)

    def _without_bias(
        self,
        name: str,
        module: torch.nn.Module,
        layer: torch.nn.Module,
        now: torch.Tensor,
        then: torch.Tensor,
        before: torch.Tensor | None,
    ) -> None:
        """The same terms for the weight alone."""
        if not isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm)):
            return
        name = f"{name}.weight"
        now, then = _unbiased(now, module), _unbiased(then, layer)
        self._log(f"{_WEIGHTS}/{name}", now - then)
        self._log(f"{_WEIGHTS}/{name}/W_t x_t", now)
        if before is not None and before.shape == then.shape:
            before = _unbiased(before.to(then.device), layer)
            self._log(f"{_INPUTS}/{name}", then - before)
            self._log(f"{_INPUTS}/{name}/W_0 x_0", before)

    def _log(self, key: str, tensor: torch.Tensor) -> None:
        norms = torch.linalg.vector_norm(tensor.float(), dim=-1)
        self.terms.log(f"{key}/{_NORM}", norms.reshape(-1))


def is_layer(module: torch.nn.Module) -> bool:
    """Whether a module has parameters itself."""
    return any(parameter is not None for parameter in table_of(module, "_parameters").values())


def _tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of a result, if it has floating point elements in rows."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
        return value.detach()
    return None


def _unbiased(output: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    bias = getattr(module, "bias", None)
    return output if bias is None else output - bias.detach()
