"""Hyper-parameters of optimizers: loaded ones, and those written where no optimizer reads them.

Groups are plain dicts, whose writes no function sees. So they are compared at the ends of steps,
and only dicts that a program may write without effect: those of a state dict until the next update,
and those that a load replaced while somebody else holds them. A scheduler, too, may replace a
written rate before any update uses it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch.optim import Optimizer, lr_scheduler

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.tensors.reading import groups_of, is_a, own
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.live_objects import rates_of
from traincheck.collect.tracking.optimizer_groups import innermost, owner_of
from traincheck.handlers import give_back
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.loads import (
    ATTRIBUTE,
    DEFAULTS,
    OLD_GROUP,
    OTHER_KEY,
    STATE_DICT,
    IneffectiveWrite,
    LoadedHyperparameters,
    LoadedSetting,
    OverwrittenRates,
)

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_BASE = "initial_lr"  # of a schedule, once a scheduler exists
_NAMES = (
    "lr", "weight_decay", "momentum", "betas", "dampening", "nesterov", "alpha", "rho", "eps",
    _BASE,
)  # fmt: skip
_ATTRIBUTES = ("lr", "learning_rate", "weight_decay", "momentum")
# Names that the program may take for those of the optimizer
_SETTING = {
    "learning_rate": "lr", "lrate": "lr", "LR": "lr", "decay": "weight_decay",
    "weight_decay_rate": "weight_decay",
}  # fmt: skip
_MOST_COPIES, _MOST_OLD, _MOST_LOADS = 8, 64, 8
_MOST_WRITTEN = 32  # observations of a run
_MOST_GROUPS = 64
_OLD_ENDS = 400
_HOOKS = "_optimizer_load_state_dict_post_hooks"
_SCHEDULE = Schedule(first=4, every=25)  # steps in which defaults and attributes are compared
_OWN = "torch.optim"  # classes whose attributes are known

_OF_OURS = 3  # references: of the caller, of the argument, of the argument of `getrefcount`

_Group = dict[str, Any]
_Settings = dict[str, Any]


@dataclass(slots=True)
class _Copy:
    """Groups that `state_dict` returned. They hold indices of parameters, and no tensor.

    waits: whether the optimizer had already stepped in the step in which it was made.
    """

    owner: str
    groups: list[_Group]
    values: list[_Settings]
    where: str | None
    waits: bool


@dataclass(eq=False)
class _Old:
    """A group that a load has replaced, and that somebody else holds.

    A group leads to parameters, and those may lead anywhere. So it is the optimizer that holds this
    object, as one of its hooks, which does nothing: both are freed together.
    """

    owner: str
    ref: weakref.ref[Optimizer]
    index: int
    group: _Group
    values: _Settings
    where: str | None
    ends: int = 0

    def __call__(self, _: Optimizer) -> None:
        """A hook after loads."""

    def leave(self) -> None:
        """Let the optimizer hold it no more."""
        optimizer = self.ref()
        if optimizer is not None:
            own(optimizer).get(_HOOKS, {}).pop(self, None)


@dataclass(slots=True)
class _Load:
    """Hyper-parameters before and after a load, until an update.

    waits: whether the optimizer had already stepped in the step of the load.
    """

    owner: str
    ref: weakref.ref[Optimizer]
    before: list[_Settings]
    after: list[_Settings]
    where: str | None
    waits: bool


class _Beside(NamedTuple):
    """Plain hyper-parameters that an optimizer does not read, by place and name.

    used: those of its groups at that time.
    """

    values: dict[tuple[str, str], Any]
    used: list[_Settings]

    @classmethod
    def of(cls, optimizer: Optimizer) -> _Beside:
        defaults = own(optimizer).get("defaults", {})
        values = {
            (DEFAULTS, name): defaults[name]
            for name in _NAMES
            if name in defaults and _is_plain(defaults[name])
        }
        if type(optimizer).__module__.startswith(_OWN):  # others may read their attributes
            held = own(optimizer)
            values |= {
                (ATTRIBUTE, name): held[name]
                for name in _ATTRIBUTES
                if name in held and _is_plain(held[name])
            }
            first = groups_of(optimizer)[0] if groups_of(optimizer) else {}
            values |= {
                (OTHER_KEY, name): first[name]
                for name in _SETTING
                if name in first and _is_plain(first[name])
            }
        return cls(values, list(map(_settings, groups_of(optimizer)[:_MOST_GROUPS])))


class HyperparameterObserver(Observer):
    """Listens to `Optimizer.state_dict` and to each load, and compares at the ends of steps."""

    produces: ClassVar = (LoadedHyperparameters, IneffectiveWrite)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._copies: list[_Copy] = []
        self._old: list[weakref.ref[_Old]] = []
        self._loads: list[_Load] = []
        self._beside: dict[str, _Beside] = {}
        self._told: set[tuple[str, str, str, str | None]] = set()

    def install(self, patcher: Patcher) -> None:
        """Listen to both functions, and compare at the ends of steps."""
        self.listen(self._session.moments.at(Optimizer, "state_dict"), Around(after=self._made))
        load = self._session.moments.at(Optimizer, "__setstate__")  # which each load calls
        self.listen(load, Around(self._begins, self._loaded))
        hooks = self._session.hooks
        self.listen(hooks.at_step_end, self._compare)
        self.listen(hooks.before_save, self._copies.clear)  # a state may be changed for its file

    def remove(self) -> None:
        """Stop comparing, and hold no group."""
        self._forget()

    def _forget(self) -> None:
        self._copies.clear()
        for ref in self._old:
            if (old := ref()) is not None:
                old.leave()
        self._old.clear()
        self._loads.clear()

    # -- the functions

    def _made(self, _: None, args: Args, kwargs: Named, state: Any) -> None:
        owner = owner_of(self._session.live.live_optimizers(), args[0])
        groups = state.get("param_groups") if isinstance(state, dict) else None
        if owner is None or type(groups) is not list or len(groups) > _MOST_GROUPS:
            return
        if not all(type(group) is dict and _holds_no_tensor(group) for group in groups):
            return
        waits = owner in self._session.live.used_rates
        self._copies.append(_Copy(owner, groups, list(map(_settings, groups)), where(), waits))
        del self._copies[:-_MOST_COPIES]

    def _begins(self, args: Args, kwargs: Named) -> tuple[list[_Group], list[_Settings]]:
        self._copies.clear()  # what was written may be loaded now
        groups = list(own(args[0]).get("param_groups", ()))
        return groups, list(map(_settings, groups))

    def _loaded(
        self,
        note: tuple[list[_Group], list[_Settings]] | None,
        args: Args,
        kwargs: Named,
        result: Any,
    ) -> None:
        if not note or not note[1]:
            return
        optimizer, (groups, values), line = args[0], note, where()
        owner = owner_of(self._session.live.live_optimizers(), optimizer)
        now = groups_of(optimizer)
        if owner is None or len(now) != len(groups) or len(now) > _MOST_GROUPS:
            return
        ref = weakref.ref(optimizer)
        present = set(map(id, now))
        index = 0
        while groups and len(self._old) < _MOST_OLD:
            group = groups.pop(0)
            hooks = own(optimizer).get(_HOOKS)
            if hooks is not None and id(group) not in present and _is_held(group):
                old = _Old(owner, ref, index, group, values[index], line)
                hooks[old] = old
                self._old.append(weakref.ref(old))
            index += 1
        others = [load for load in self._loads if load.owner != owner]
        waits = owner in self._session.live.used_rates
        others.append(_Load(owner, ref, values, list(map(_settings, now)), line, waits))
        self._loads = others[-_MOST_LOADS:]

    # -- the ends of steps

    def _compare(self, em: Emitter) -> None:
        try:
            step = self._session.clock.step
            if self._copies and self._session.live.used_rates:
                self._compare_copies(em)
            if self._old:
                self._old = [ref for ref in self._old if self._stays(em, ref())]
            if self._loads:
                self._loads = [load for load in self._loads if self._waits(em, load)]
            if step is not None and _SCHEDULE.includes(step):
                self._compare_defaults(em)
        except Exception as error:  # the step must be written whatever we got wrong
            self._forget()
            self._session.fault(self._compare, error)

    def _compare_copies(self, em: Emitter) -> None:
        live = dict(self._session.live.live_optimizers())
        updated = self._session.live.used_rates
        stepped = [copy for copy in self._copies if copy.owner in updated and not copy.waits]
        self._copies[:] = [copy for copy in self._copies if not any(copy is one for one in stepped)]
        for copy in self._copies:
            copy.waits &= copy.owner not in updated
        for copy in stepped:
            now = live.get(copy.owner)
            if now is None:
                continue
            for group, values, present in zip(copy.groups, copy.values, groups_of(now)):
                self._tell(em, copy.owner, STATE_DICT, (group, values, present), copy.where)

    def _stays(self, em: Emitter, old: _Old | None) -> bool:
        """Whether a replaced group is compared at the next step, too."""
        optimizer = None if old is None else old.ref()
        if old is None or optimizer is None:
            return False
        old.ends += 1
        stays = False
        groups = groups_of(optimizer)
        if old.index < len(groups):
            what = old.group, old.values, groups[old.index]
            is_told = self._tell(em, old.owner, OLD_GROUP, what, old.where)
            del what
            stays = not is_told and old.ends < _OLD_ENDS and _is_held(old.group)
        if not stays:
            old.leave()
        return stays

    def _tell(
        self,
        em: Emitter,
        owner: str,
        place: str,
        what: tuple[_Group, _Settings, _Group],
        line: str | None,
    ) -> bool:
        """Record a write to a group that is not in force. what: it, its values, and that one."""
        group, values, present = what
        if group is present:
            return False
        for name, before in values.items():
            written, in_force = group.get(name), present.get(name)
            if not _is_plain(written) or written in (before, in_force):
                continue
            self._write(
                em, IneffectiveWrite(owner, place, name, *_texts(before, written, in_force), line)
            )
            return True
        return False

    def _waits(self, em: Emitter, load: _Load) -> bool:
        """Whether the next update after a load is still to come."""
        optimizer = load.ref()
        if optimizer is None:
            return False
        if load.waits or load.owner not in self._session.live.used_rates:
            load.waits = False
            return True
        now = list(map(_settings, groups_of(optimizer)))
        triples = enumerate(zip(load.before, load.after, now))
        settings = [
            LoadedSetting(
                index,
                name,
                *_texts(_before(before, name), after[name], later[name]),
                is_default=_is_default(optimizer, name, _before(before, name)),
            )
            for index, (before, after, later) in triples
            for name in after
            if name in later and _before(before, name) not in (None, after[name])
        ]
        write(em, LoadedHyperparameters(load.owner, tuple(settings), load.where))
        return False

    def _compare_defaults(self, em: Emitter) -> None:
        """Compare what is beside the groups, while the groups themselves stay as they were."""
        known, self._beside = self._beside, {}
        for owner, optimizer in self._session.live.live_optimizers():
            now = self._beside[owner] = _Beside.of(optimizer)
            before = known.get(owner)
            if before is None or before.used != now.used:
                continue
            for (place, name), written in now.values.items():
                used = [group.get(_SETTING.get(name, name)) for group in now.used]
                if used and written not in (before.values.get((place, name)), *used):
                    values = _texts(before.values.get((place, name)), written, used[0])
                    self._write(em, IneffectiveWrite(owner, place, name, *values))

    def _write(self, em: Emitter, found: IneffectiveWrite) -> None:
        """Record it, once for each place and line."""
        key = found.owner, found.place, found.name, found.where
        if key not in self._told and len(self._told) < _MOST_WRITTEN:
            self._told.add(key)
            write(em, found)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) in (float, int) for item in value)
    return type(value) in (float, int, bool)


def _settings(group: Mapping[str, Any]) -> _Settings:
    return {name: group[name] for name in _NAMES if name in group and _is_plain(group[name])}


def _holds_no_tensor(group: Mapping[str, Any]) -> bool:
    """Whether a group of a state dict is as torch packs it: to hold it keeps no tensor alive."""
    params = group.get("params")
    if type(params) is not list or not all(type(item) in (int, str) for item in params):
        return False
    others = (value for name, value in group.items() if name != "params")
    return all(value is None or type(value) is str or _is_plain(value) for value in others)


def _is_held(group: _Group) -> bool:
    """Whether anything holds a dict but the one reference of the caller."""
    return getrefcount(group) > _OF_OURS


def _texts(*values: Any) -> tuple[str, str, str]:
    first, second, third = map(repr, values)
    return first, second, third


def _before(values: _Settings, name: str) -> Any:
    """A value before a load; without a scheduler, the rate is that from which one would start."""
    return values.get(name, values.get("lr") if name == _BASE else None)


def _is_default(optimizer: Optimizer, name: str, value: Any) -> bool:
    """Whether the class has this default, or a rate of zero, which is a placeholder."""
    name = "lr" if name == _BASE else name
    if name == "lr" and not value:
        return True
    try:
        known = inspect.signature(type(optimizer).__init__).parameters.get(name)
    except (TypeError, ValueError) as error:
        give_back(error)
        return True
    return known is not None and known.default is not known.empty and known.default == value


_MOST = 16  # observations of a run
# They compute a rate from the base rate and the position. Others multiply the present rate.
_ABSOLUTE = (
    lr_scheduler.LambdaLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
)


class OverwrittenRateObserver(Observer):
    """Compares the rates of groups before and after a step of a scheduler."""

    produces: ClassVar = (OverwrittenRates,)
    hook: ClassVar = Hook.SCHEDULER_STEP

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._written: tuple[int, list[float]] | None = None
        self._count = 0

    def before_step(self, em: Emitter, args: tuple[Any, ...]) -> None:
        """A scheduler is about to step: remember rates that it has not set itself."""
        self._written = None
        scheduler = args[0]
        if self._count >= _MOST or not is_a(scheduler, _ABSOLUTE):
            return
        optimizer, last = innermost(own(scheduler).get("optimizer")), own(scheduler).get("_last_lr")
        if optimizer is not None and type(last) is list:
            now = rates_of(optimizer)
            if now and now != last and len(now) == len(last):
                self._written = id(scheduler), now

    def after_step(self, em: Emitter, scheduler: Any) -> None:
        """It has stepped: record the rates that it replaced, if the last update had others."""
        written, self._written = self._written, None
        if written is None or written[0] != id(scheduler):
            return
        optimizer = innermost(scheduler.optimizer)
        live = self._session.live
        owner = owner_of(live.live_optimizers(), optimizer)
        used = live.used_rates.get(owner or "")
        if optimizer is None or owner is None or not used or len(used) != len(written[1]):
            return
        now = rates_of(optimizer)
        if any(w not in (u, n) for w, u, n in zip(written[1], used, now)):
            self._count += 1
            found = tuple(written[1]), tuple(used), tuple(now)
            write(em, OverwrittenRates(owner, dotted(type(scheduler)), *found, where()))
