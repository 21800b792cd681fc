"""Models for experiments: copied and trained for a call of `probe`, and run in eval mode."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from traincheck.collect.active_session import CURRENT
from traincheck.collect.probes.batch import GIVEN, leaves, mapped
from traincheck.collect.tensors.devices import KIND, MODULE
from traincheck.collect.tensors.reading import tensors_in
from traincheck.errors import UsageError
from traincheck.handlers import give_back

Model: TypeAlias = torch.nn.Module
Loss: TypeAlias = Callable[[Any], torch.Tensor]
_STEPS = 3  # experiments are made in the third step in which a model is called


def copied(model: torch.nn.Module, batch: Any, inputs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """The model in training mode and the inputs, as copies."""
    try:
        ours = copy.deepcopy(model)
    except Exception as error:
        give_back(error)
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            fix="probe the training script instead: traincheck probe train.py",
        ) from error
    given, named = mapped((batch, inputs), lambda tensor: tensor.detach().clone())
    ours.zero_grad()
    vars(ours)[GIVEN] = True
    return ours.train(), given, named


def train(model: torch.nn.Module, batch: Any, inputs: Any, loss: Loss | None) -> None:
    """Steps without an update: the copy keeps its weights."""
    _end_step()
    for _ in range(_STEPS):
        result = model(*batch, **inputs)
        value = getattr(result, "loss", result) if loss is None else loss(result)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        elif loss is not None:
            raise UsageError(
                f"the loss returned {type(value).__name__}, which is no scalar with a gradient",
                fix="probe(model, x, loss=lambda out: torch.nn.functional.cross_entropy(out, y))",
            )
        model.zero_grad()
        _end_step()


def _end_step() -> None:
    session: Any = CURRENT.session
    if session is not None:
        session.user_marks.mark_step()


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put the generators of torch, Python and numpy back at the end."""
    numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
    ours, theirs = random.getstate(), numpy.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(range(MODULE.device_count()), device_type=KIND):
            yield
    finally:
        random.setstate(ours)
        if numpy is not None:
            numpy.set_state(theirs)


class Bench:
    """A model in eval mode. Each forward begins with the same buffers and random states."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        torch.set_grad_enabled(True)  # without gradients, some layers take another path
        self._buffers = [
            (buffer, buffer.detach().clone()) for buffer in tensors_in(module, "_buffers")
        ]
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = getattr(numpy, "random", None)
        self._numpy_state = self._numpy.get_state() if self._numpy is not None else None

    def forward(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """The result of the model for other inputs."""
        self.reset()
        args, kwargs = given
        return self.module(*args, **kwargs)

    @property
    def draws(self) -> bool:
        """Whether the last forward drew random numbers."""
        if not bool(torch.equal(torch.get_rng_state(), self._torch)):
            return True
        states: Any = () if self._numpy is None else (self._numpy.get_state(), self._numpy_state)
        return random.getstate() != self._python or any(
            bool((a != b).any()) if hasattr(a, "any") else bool(a != b) for a, b in zip(*states)
        )

    def reset(self) -> None:
        """Put buffers and random states back."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                if buffer.shape != value.shape or not bool(torch.equal(buffer, value)):
                    buffer.copy_(value)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_state)


def rows(result: Any, size: int) -> list[torch.Tensor]:
    """The parts of a result that have one row for each sample: no scalars, no pairs of samples."""
    return [
        tensor.detach()
        for tensor in leaves(result)
        if tensor.dim() and tensor.shape[0] == size and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and not (tensor.dim() == 2 and tensor.shape[1] == size)
    ]  # fmt: skip


def distance(first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """The largest difference of two tensors, in units of the largest value.

    scale: whose largest value; None for the first tensor. NaN in both is no difference.
    """
    if first.shape != second.shape:
        return float("inf")
    if not first.numel():
        return 0.0
    mine, theirs = first.double(), second.double()
    largest = (mine if scale is None else scale.double()).abs().nan_to_num(0, 0, 0).max()
    apart = (mine - theirs).abs()
    apart = torch.where((mine == theirs) | (mine.isnan() & theirs.isnan()), 0.0, apart)
    return float(apart.nan_to_num(float("inf")).max() / largest.clamp_min(1e-12))
