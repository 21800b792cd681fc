"""A few steps of training with a copy of a model, for experiments on one batch."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from traincheck.collect.active_session import CURRENT
from traincheck.collect.probes.samples import GIVEN
from traincheck.collect.probes.tree import mapped
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
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(ours)
        if numpy is not None:
            numpy.set_state(theirs)
