"""Models from a load to the second update after it: whether the first update undoes the load.

The first loads of a model are followed, while no other code writes to it before the first update.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import distances, sample
from traincheck.collect.tensors.devices import is_remote
from traincheck.collect.tensors.reading import is_lazy, named_tensors
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.naming import ByObject
from traincheck.schema.observations.loads import FollowedValue, LoadFollowed

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_LOADS = 4  # of one model that are followed: a worker copies its weights in every step
_MOST = 4  # models at a time
_MOST_PARAMETERS = 256
_MOST_VALUES = 64  # of a record

_Samples = dict[str, torch.Tensor]


@dataclass(slots=True)
class _Load:
    """A model since a load.

    Attributes:
        ref: the model.
        before, loaded: samples before and after the load, of parameters that it can have changed.
        step: in which it was loaded.
        is_used: whether the first update began with exactly the loaded values; None before it.
        updated: samples after the first update.
        updated_in: its step.
    """

    ref: weakref.ref[torch.nn.Module]
    path: str
    where: str | None
    before: _Samples
    loaded: _Samples
    step: int | None
    is_used: bool | None = None
    updated: _Samples = field(default_factory=dict)
    updated_in: int = 0


class FollowedLoadObserver(Observer):
    """Takes samples at loads of models, and at the ends of the next two steps with an update."""

    produces: ClassVar = (LoadFollowed,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._open: list[_Load] = []
        self._counts = ByObject[tuple[weakref.ref[torch.nn.Module], int]]()

    def install(self, patcher: Patcher) -> None:
        """Follow loads of models."""
        load = self._session.moments.at(torch.nn.Module, "load_state_dict")
        self.listen(load, Around(self._before, self._after))
        self.listen(self._session.hooks.at_step_end, self._ended)

    def remove(self) -> None:
        """Stop following."""
        self._follow([])

    def _before(self, args: Args, kwargs: Named) -> _Samples:
        if not args:
            return {}
        module = args[0]
        known = self._counts.get(id(module))
        count = known[1] if known is not None and known[0]() is module else 0
        self._counts.keep(module, (weakref.ref(module), count + 1))
        return {} if count >= _LOADS else _samples(module)

    def _after(self, before: _Samples | None, args: Args, kwargs: Named, result: Any) -> None:
        if not before:
            return
        module = args[0]
        loaded = _samples(module)
        before = {name: old for name, old in before.items() if _is_like(loaded.get(name), old)}
        if not before:
            return
        path = self._session.tracker.modules.find(module)[0]
        others = [load for load in self._open if load.ref() not in (module, None)]
        loaded = {name: loaded[name] for name in before}
        step = self._session.clock.step
        load = _Load(weakref.ref(module), path, where(), before, loaded, step)
        self._follow([*others[-(_MOST - 1) :], load])

    def _follow(self, loads: list[_Load]) -> None:
        """Set the loads that are followed. Without any, nothing is called before updates."""
        hooks = self._session.hooks.before_optimizer
        if loads and not self._open:
            hooks.add(self._updating)
        elif self._open and not loads:
            hooks.leave(self._updating)
        self._open = loads

    def _updating(self, em: Emitter, owner: str) -> None:
        """An optimizer is about to update: do the models still hold what was loaded?"""
        for load in self._open:
            if load.is_used is None:
                load.is_used = _is_intact(load)

    def _ended(self, em: Emitter) -> None:
        """A step ends."""
        if self._open:
            going: list[_Load] = []
            try:
                going = [load for load in self._open if self._goes_on(em, load)]
            finally:
                self._follow(going)

    def _goes_on(self, em: Emitter, load: _Load) -> bool:
        """Whether to follow a load in the next step."""
        module, session = load.ref(), self._session
        step = session.clock.step or 0
        if module is None or load.is_used is False or self._has_gap(load, step):
            return False
        load.step = step
        if not session.steps.counters["optimizer_step"] or load.is_used is None:
            return True
        now = _samples(module)
        if not load.updated:
            load.updated = {name: now[name] for name in load.loaded if name in now}
            load.updated_in = step
            return len(load.updated) == len(load.loaded)
        values = _followed(load, now)
        changed = {name: value for name, value in values.items() if value.jump > 0}
        if changed:
            moved = sorted(changed.items(), key=lambda item: -item[1].moved)[:_MOST_VALUES]
            write(
                em,
                LoadFollowed(load.path, load.where, load.updated_in, len(changed), dict(moved)),
            )
        return False

    def _has_gap(self, load: _Load, step: int) -> bool:
        """Whether a step was not recorded since: an update may have been missed."""
        return not self._session.sampling.is_all and step - (load.step or 0) > 1


def _samples(module: torch.nn.Module) -> _Samples:
    found: _Samples = {}
    for name, parameter in named_tensors(module):
        if len(found) >= _MOST_PARAMETERS:
            break
        part = None if is_lazy(parameter) else sample(parameter)
        if part is not None:
            found[name] = part
    return found


def _is_like(loaded: torch.Tensor | None, before: torch.Tensor) -> bool:
    """Whether samples can be compared."""
    return (
        loaded is not None
        and loaded.shape == before.shape
        and loaded.dtype is before.dtype
        and loaded.device == before.device
    )


def _is_intact(load: _Load) -> bool:
    """Whether a model holds exactly the loaded values. On a device this is not known: it waits."""
    module = load.ref()
    if module is None:
        return False
    now = _samples(module)
    return all(
        name in now
        and _is_like(now[name], part)
        and (is_remote(part) or torch.equal(now[name], part))
        for name, part in load.loaded.items()
    )


def _followed(load: _Load, now: Mapping[str, torch.Tensor]) -> dict[str, FollowedValue]:
    """Distances of each parameter; empty if one cannot be compared."""
    names = list(load.loaded)
    if not all(
        _is_like(now.get(name), load.loaded[name])
        and _is_like(load.updated[name], load.loaded[name])
        for name in names
    ):
        return {}
    pairs = []
    for name in names:
        before, loaded, updated = load.before[name], load.loaded[name], load.updated[name]
        pairs += [(loaded, before), (updated, loaded), (updated, before), (now[name], updated)]
    found = distances(pairs)
    return {
        f"{load.path}.{name}": FollowedValue(*found[4 * place : 4 * place + 4])
        for place, name in enumerate(names)
    }
