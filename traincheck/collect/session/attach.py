"""Begin to record a running process: models and optimizers that already exist.

In a launched run they are found when they are created. Here the user passes them.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed
from torch.optim import Optimizer

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.instruments.optimizers import Optimizers
from traincheck.collect.session.session import Session
from traincheck.collect.tensors.reading import (
    groups_of,
    is_a,
    items_of,
    modules_in,
    sequence_of,
    tensors_in,
    unseen,
)
from traincheck.collect.tracking.optimizer_groups import innermost
from traincheck.errors import UsageError

_MAX_DEPTH = 3
_MAX_ITEMS = 64  # of a container that is only searched


class WatchedObjects:
    """Models and optimizers to watch."""

    def __init__(self) -> None:
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[Optimizer] = []

    def add(self, found: Any) -> bool:
        """Add a model, an optimizer, or an object that holds one. Returns whether it was one."""
        if is_a(found, torch.nn.Module):
            self._add(self.models, found)
            return True
        inner = innermost(found)
        if inner is not None:
            self._add(self.optimizers, inner)
        return inner is not None

    def add_all(self, values: Iterable[Any], *, is_strict: bool, depth: int = 0) -> None:
        """Add all models and optimizers in ``values`` and its containers.

        Args:
            values: objects, or lists, tuples and dicts of them.
            is_strict: reject objects that cannot be watched, instead of skipping them.
            depth: of the containers around.

        Raises:
            UsageError: an object cannot be watched.
        """
        # Arguments of a function may be whole data sets.
        for value in values if is_strict else itertools.islice(values, _MAX_ITEMS):
            if self.add(value) or value is None:
                continue
            if (sequence := sequence_of(value)) is not None and depth < _MAX_DEPTH:
                self.add_all(sequence, is_strict=is_strict, depth=depth + 1)
            elif (items := items_of(value)) is not None and depth < _MAX_DEPTH:
                self.add_all([item for _, item in items], is_strict=is_strict, depth=depth + 1)
            elif is_strict:
                raise UsageError(
                    f"a {type(value).__name__} cannot be watched",
                    fix="give models and optimizers: traincheck.watch(model, optimizer)",
                )

    @staticmethod
    def _add(known: list[Any], found: Any) -> None:
        if not any(found is other for other in known):
            known.append(found)


def attach(session: Session, subjects: WatchedObjects) -> None:
    """Record these from now on. The session is already running."""
    if distributed.is_available() and distributed.is_initialized():
        session.set_rank(distributed.get_rank())
    em = session.local.em or session.emitter()
    busy, em.busy = em.busy, True
    try:
        with unseen():
            for model in subjects.models:
                for module in modules_in(model):
                    session.tracker.modules.created.add(module)
            for model in subjects.models:
                _, root = session.tracker.modules.find(model)
                session.tracker.track(em, root)
                session.live.models.setdefault(root.name, root.ref)
            for instrument in session.installed:
                if isinstance(instrument, Optimizers):
                    for optimizer in subjects.optimizers:
                        instrument.adopt(optimizer)
            session.tracker.scans.rebaseline(
                session.live.live_optimizers()
            )  # there may be gradients
            em.flush()
    finally:
        em.busy = busy


def optimizers_of(models: Iterable[torch.nn.Module]) -> list[Optimizer]:
    """The live optimizers that hold a parameter of these models."""
    held = {id(parameter) for model in models for parameter in tensors_in(model)}
    found = WatchedObjects()
    # Not isinstance: objects that imitate others may run any code in it.
    for candidate in [o for o in gc.get_objects() if issubclass(type(o), Optimizer)]:
        optimizer = innermost(candidate)
        if optimizer is not None and any(
            id(p) in held for group in groups_of(optimizer) for p in group["params"]
        ):
            found.add(optimizer)
    return found.optimizers


def settle(session: Session) -> None:
    """End the current step if its iteration is complete; otherwise do nothing.

    Everything until the next iteration, such as an evaluation, then belongs to the next step. Steps
    that are not recorded are not ended: they show nothing.
    """
    if not session.recording.on:
        return
    session.steps.catch_up()
    if session.steps.is_between:
        session.steps.end()
        watch_for_boundary(session)
