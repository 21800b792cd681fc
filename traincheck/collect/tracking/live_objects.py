"""The live optimizers and root models of a process, their use in a step, and its threads."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from threading import get_ident
from typing import Any

import torch

from traincheck.collect.tensors.reading import (
    PLAIN_TYPES,
    groups_of,
    is_a,
    is_training,
    item,
    real,
    tensors_in,
)
from traincheck.collect.tracking.tracked_model import still_there, this_thread


class LiveObjects:
    """Optimizers and called root models, by id.

    Attributes:
        used_rates: in this step, the learning rates when the optimizers stepped.
        called_modes: in this step, the modes of models when they were called.
    """

    def __init__(self) -> None:
        self.optimizers: dict[str, weakref.ref[torch.optim.Optimizer]] = {}
        self.models: dict[str, weakref.ref[torch.nn.Module]] = {}
        self.used_rates: dict[str, list[float]] = {}
        self.called_modes: dict[str, bool] = {}

    def live_optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        """Id and object of every optimizer that is still alive."""
        return [
            (name, found)
            for name, ref in list(self.optimizers.items())
            if (found := ref()) is not None
        ]

    def optimized_ids(self) -> set[int]:
        """Identities of all parameters that some optimizer holds now."""
        return {id(p) for _, found in self.live_optimizers() for p in parameters_of(found)}

    def without_update(self, done: AbstractSet[str]) -> set[str]:
        """Live optimizers that hold a parameter which none of ``done`` holds."""
        live = dict(self.live_optimizers())
        updated = {id(p) for name in done & live.keys() for p in parameters_of(live[name])}
        return {
            name
            for name, found in live.items()
            if not updated or any(id(p) not in updated for p in parameters_of(found))
        }

    def is_evaluating(self) -> bool:
        """Whether every live model that has parameters and was called is in eval mode."""
        live = [m for ref in self.models.values() if (m := ref()) is not None]
        mode = [is_training(m) for m in live if next(tensors_in(m), None) is not None]
        return bool(mode) and not any(mode)

    def take_step(self) -> tuple[dict[str, list[float]], dict[str, bool]]:
        """Rates and modes of the step that ends; the next one begins empty."""
        rates, modes = self.used_rates, self.called_modes
        # Not the rates that a scheduler has set since, for the next step
        if rates.keys() != self.optimizers.keys():
            rates = {**{name: rates_of(o) for name, o in self.live_optimizers()}, **rates}
        if not all(rates.values()):
            rates = {name: found for name, found in rates.items() if found}
        # At the end of a program its models may be gone: then the modes of their last call
        for name, ref in self.models.items():
            module = ref()
            if module is not None:
                modes[name] = is_training(module)
        self.used_rates, self.called_modes = {}, {}
        return rates, modes


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """All parameters in the groups of an optimizer."""
    return (parameter for group in groups_of(optimizer) for parameter in group["params"])


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """The current learning rate of each group; empty if one of them is not a number."""
    rates: list[float] = []
    for group in groups_of(optimizer):
        rate: Any = group.get("lr")
        found: float | None
        if type(rate) is float:
            found = rate
        elif type(rate) in PLAIN_TYPES:  # to read one on a device would wait for it
            found = float(item(rate)) if rate.is_cpu else None
        else:
            found = None if is_a(rate, torch.Tensor) else real(rate)
        if found is None or found - found != 0:  # the last: not finite
            return []
        rates.append(found)
    return rates


class TrainerThreads:
    """Registers each thread that trains, and tells whether there are several."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def register(self) -> bool:
        """Register this thread, which trains or is about to. True if others train, too."""
        if get_ident() not in self._threads and (here := this_thread()) is not None:
            self._threads = still_there(self._threads) | {here}
        return len(self._threads) > 1

    def __contains__(self, thread: int | None) -> bool:
        return thread in self._threads
