"""Profile a block of code in the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.collect.recording import Recording, recording
from traincheck.collect.profile.memory import IS_READABLE
from traincheck.collect.session.attach import WatchedObjects, attach
from traincheck.collect.tensors.loss_graph import IS_TOLD
from traincheck.profile.layers import Layer
from traincheck.profile.numbers import Profile, profiles_of
from traincheck.schema.claims import Needs

NEEDS = Needs(kinds=frozenset({"profile"}))
# FLOPs and retained memory come from what nodes tell; torch 2.4 does not have it.
needs_nodes = pytest.mark.skipif(
    not (IS_TOLD and IS_READABLE), reason="nodes of this torch tell no sizes and no saved tensors"
)


@contextmanager
def profiling(
    folder: Path, *subjects: Any, first: int = 0, steps: int = 100
) -> Iterator[Recording]:
    """Record the block, whose steps are profiled. What earlier tests compiled is not part of it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
    with recording(folder, needs=NEEDS, profile=(first, steps)) as run:
        given = WatchedObjects()
        given.add_all(subjects, is_strict=True)
        attach(run.session, given)
        yield run


def profile_of(run: Recording) -> Profile:
    (found,) = profiles_of(run.events).values()
    return found


def trained(
    folder: Path, make: Callable[[], torch.nn.Module], loss_of: Callable[[Any], torch.Tensor],
    steps: int = 1, **window: int,
) -> tuple[Profile, torch.nn.Module]:  # fmt: skip
    """The profile of some steps of this network, and the network."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with profiling(folder, model, optimizer, **window) as run:
        train(model, optimizer, loss_of, steps)
    return profile_of(run), model


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], torch.Tensor], steps: int,
) -> None:  # fmt: skip
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def layer(profile: Profile, path: str) -> Layer:
    """The layer of this path in the first profiled step."""
    return next(one for one in profile.steps[0].layers() if one.path == path)
