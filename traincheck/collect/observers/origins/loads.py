"""Loads: whether the first update undoes one, what it left out, and state of optimizers by name.

The first loads of a model are followed up to the second update, while no other code writes to it
before the first one. Parameters that a load left out are followed until another load sets them, or
an optimizer trains them. State of optimizers is taken to be saved or loaded.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import (
    distances,
    read_short,
    sample,
    sketch,
)
from traincheck.collect.tensors.devices import host, is_remote
from traincheck.collect.tensors.reading import (
    as_plain,
    is_a,
    is_lazy,
    named_modules,
    named_tensors,
    state_of,
    states_of,
)
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.naming import ByObject
from traincheck.collect.tracking.optimizer_groups import owner_of
from traincheck.schema.observations.loads import (
    FollowedValue,
    LoadFollowed,
    OptimizerValues,
    PartNotLoaded,
)

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


_MOST_LEFT_OUT = 8  # loads at a time
_MOST_NAMES = 32
_UPDATES = 2  # steps with an update, after which a load is judged

_Ref = weakref.ref[torch.Tensor]


class _Partial(NamedTuple):
    """A load that left parameters out, by name."""

    path: str
    where: str | None
    loaded: int
    missing: dict[str, _Ref]


class LoadedParameterObserver(Observer):
    """Listens to `Module.load_state_dict`, and judges partial loads after two updates."""

    produces: ClassVar = (PartNotLoaded,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._loaded = ByObject[tuple[_Ref]]()
        self._open: list[_Partial] = []
        self._updates = 0  # steps with an update since the last load

    def install(self, patcher: Patcher) -> None:
        """Note loads, and write at the ends of steps."""
        load = self._session.moments.at(torch.nn.Module, "load_state_dict")
        self.listen(load, Around(after=self._note))
        self.listen(self._session.hooks.at_step_end, self._ended)

    def _note(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        state = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not args or not isinstance(state, Mapping):
            return
        module = args[0]
        own = dict(named_tensors(module, again=True))
        given = {id(parameter) for name, parameter in own.items() if name in state}
        for name, parameter in own.items():
            if name in state:
                self._loaded.keep(parameter, (weakref.ref(parameter),))
        missing: dict[str, _Ref] = {
            name: weakref.ref(p) for name, p in own.items() if id(p) not in given
        }
        if missing and len(given) >= len(missing):  # else it is an adapter
            path = self._session.tracker.modules.find(module)[0]
            self._open = [
                *self._open[-(_MOST_LEFT_OUT - 1) :],
                _Partial(path, where(), len(given), missing),
            ]
        self._updates = 0

    def _ended(self, em: Emitter) -> None:
        """A step ends."""
        if not self._open or not self._session.steps.counters["optimizer_step"]:
            return
        self._updates += 1
        if self._updates < _UPDATES:
            return
        opened, self._open = self._open, []
        held = self._session.live.optimized_ids()
        for load in opened:
            names = list(self._left(load, held))
            if names:
                some = tuple(names[:_MOST_NAMES])
                write(em, PartNotLoaded(load.path, load.where, load.loaded, some, len(names)))

    def _left(self, load: _Partial, held: set[int]) -> Iterator[str]:
        """Names of parameters that nothing has set since, and that nothing trains."""
        libraries = self._of_libraries(load.path)
        for name, ref in load.missing.items():
            parameter = ref()
            if parameter is None or is_lazy(parameter) or parameter.requires_grad:
                continue
            known = self._loaded.get(id(parameter))
            is_loaded = known is not None and known[0]() is parameter
            full = f"{load.path}.{name}"
            if is_loaded or id(parameter) in held or full.startswith(libraries):
                continue
            if _is_random(parameter):
                yield full

    def _of_libraries(self, path: str) -> tuple[str, ...]:
        """Beginnings of names of parts that a library has loaded, which leaves its name."""
        root = self._session.tracker.roots.get(path.partition(".")[0])
        top = None if root is None else root.ref()
        if root is None or not isinstance(top, torch.nn.Module):
            return ()
        return tuple(
            f"{root.name}.{part}." if part else f"{root.name}."
            for part, module in named_modules(top)
            if getattr(module.__dict__.get("config"), "_name_or_path", "")
        )


def _is_random(parameter: torch.Tensor) -> bool:
    """Whether the elements differ: zeros and ones are values that a program may mean."""
    part = sample(parameter)
    if part is None or part.numel() < 2:  # noqa: PLR2004
        return False
    return bool(host((part != part[0]).any()))


_CALLS, _EVERY = 32, 10  # calls of one optimizer: the first, then some, as a loop may keep states

_Found = dict[tuple[str, str], torch.Tensor]


class _Taken(NamedTuple):
    """Sketches that are read when the step ends."""

    moment: str
    owner: str
    where: str | None
    numbers: _Found


class OptimizerValueObserver(Observer):
    """Listens to `Optimizer.state_dict` and `Optimizer.load_state_dict`."""

    produces: ClassVar = (OptimizerValues,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._sketcher = Sketcher()
        self._taken: list[_Taken] = []
        self._calls = ByObject[tuple[weakref.ref[torch.optim.Optimizer], int]]()

    def install(self, patcher: Patcher) -> None:
        """Listen to the methods, and write at the ends of steps."""
        moments, optimizer = self._session.moments, torch.optim.Optimizer
        for name, word in (("state_dict", "saved"), ("load_state_dict", "loaded")):
            take = functools.partial(self._take, word)
            self.listen(moments.at(optimizer, name), Around(after=take))
        hooks = self._session.hooks
        for moment in (hooks.at_step_end, hooks.at_close):
            self.listen(moment, self._tell)

    def _take(self, moment: str, _: None, args: Args, kwargs: Named, result: Any) -> None:
        session = self._session
        if not args:
            return
        optimizer = args[0]
        owner = owner_of(session.live.live_optimizers(), optimizer)
        if owner is None or not states_of(optimizer):
            return
        known = self._calls.get(id(optimizer))
        count = known[1] + 1 if known is not None and known[0]() is optimizer else 1
        self._calls.keep(optimizer, (weakref.ref(optimizer), count))
        if moment == "saved" and count > _CALLS and count % _EVERY:
            return
        numbers: _Found = {}
        named = list(session.tracker.named_parameters(owner, optimizer))[:_MOST_PARAMETERS]
        for name, parameter in named:
            state = state_of(optimizer, parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                if is_a(value, torch.Tensor) and as_plain(value).dim() and isinstance(key, str):
                    found = sketch(self._sketcher, value)
                    if found is not None:
                        numbers[name, key] = found
        if numbers:
            self._taken.append(_Taken(moment, owner, where(), numbers))

    def _tell(self, em: Emitter) -> None:
        """A step ends."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        for each in taken:
            values: dict[str, dict[str, tuple[float, ...]]] = {}
            for (name, key), row in zip(each.numbers, read_short([*each.numbers.values()])):
                values.setdefault(name, {})[key] = row
            write(em, OptimizerValues(each.moment, each.owner, each.where, values))
