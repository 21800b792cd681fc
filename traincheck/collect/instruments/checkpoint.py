"""Saving and loading of state: missing keys, and the number of parameters that a load changed."""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike, fsdecode
from typing import Any, TypeAlias

import torch
from torch.optim import lr_scheduler

from traincheck.collect import masking
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.moment import Args, Around, Moment, Named
from traincheck.collect.observers.averages import LoadedAverageObserver
from traincheck.collect.observers.import_hook import ImportHook
from traincheck.collect.observers.state_dicts import StateDictObserver
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import as_plain, is_a, is_lazy, named_tensors
from traincheck.collect.tensors.summarize import dotted, summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, tell
from traincheck.collect.tracking import optimizer_groups
from traincheck.collect.tracking.naming import class_of
from traincheck.collect.tracking.optimizer_groups import owner_of
from traincheck.schema.layout import LARGEST_WHOLE

_MAX_KEYS = 20
_MAX_VALUES = 4096
_MAX_DEPTH = 5  # of nested dicts in a file
_OPTIMIZER = frozenset({"state", "param_groups"})  # keys of the states that torch makes
_SCHEDULER = "last_epoch"
_SCALER = frozenset({"scale", "growth_factor", "backoff_factor"})
_ALONE = frozenset({"optimizer", "scheduler", "scaler"})  # kinds that have separate files
_RNG_BYTES = 1000  # states of generators are byte tensors larger than this

# Other functions that write checkpoints, by the module that they are imported from
_SAVERS = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
}
_PATHS = ("f", "filename", "checkpoint_id", "storage_writer")  # keywords of all of them

_Ties: TypeAlias = dict[str, int]  # names of parameters that share one object, and the object
# Fields of the record, from the state before, arguments and result
_Describe: TypeAlias = Callable[
    ["_Before", tuple[Any, ...], Mapping[str, Any], Any], dict[str, Any]
]


class _Before:
    """The state before a load. stage: the one that it interrupts."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.digests: dict[str, str | None] = {}
        self.ties: _Ties = {}
        self.shared = 0
        self.made: dict[str, Any] = {}  # of a state that shares memory: its origin
        self.changes: int | None = None  # changes by the load of an optimizer or scheduler


class Checkpoint(Instrument):
    """The stage is "checkpoint" while state is saved or loaded."""

    name = "checkpoint"

    def install(self) -> None:
        self._nested = False  # loading an object may load its parts
        self._averages = LoadedAverageObserver(self.session)
        self._averages.install(self)
        self._made = StateDictObserver()
        self.replace(torch, "save", self._wrap_save)
        self._imports = ImportHook(_SAVERS.__contains__, self._wrap_savers, self.session.fault)
        self._imports.install()
        for name in _SAVERS.keys() & sys.modules.keys():
            self._wrap_savers(sys.modules[name])
        module, optimizer = torch.nn.Module, torch.optim.Optimizer
        recording = self.session.recording
        self.replace(module, "state_dict", lambda f: self._made.wrap(f, lambda: recording.on))
        loads: list[tuple[Any, _Describe]] = [
            (module, self._describe_module),
            (optimizer, self._describe_optimizer),
            (torch.amp.GradScaler, _describe_scaler),
        ]
        for cls in list(vars(lr_scheduler).values()):
            is_scheduler = isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler)
            if is_scheduler and "load_state_dict" in vars(cls):
                loads.append((cls, _describe_scheduler))
        moments = self.session.moments
        self.listen(moments.at(torch, "load"), self._around(_describe_load))
        for cls, describe in loads:
            self.listen(moments.at(cls, "load_state_dict"), self._around(describe))

    def remove(self) -> None:
        self._imports.remove()
        super().remove()
        self._averages.mute()

    def _wrap_savers(self, module: types.ModuleType) -> None:
        """Wrap the functions of a module that save, once it has been imported."""
        for name in _SAVERS[module.__name__]:
            if hasattr(module, name):
                self.replace(module, name, self._wrap_save)

    def _wrap_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self.session
        saved = Moment(session)
        saved.add(self._around(self._describe_save))
        recorded = saved.wrapped(original)

        def save(*args: Any, **kwargs: Any) -> Any:
            em = session.local.em
            if not self._nested and (em is None or not em.busy):
                for action in session.hooks.before_save.all:
                    action()
            return recorded(*args, **kwargs)

        return hidden(save)

    def _around(self, describe: _Describe) -> Around:
        return Around(self._enter, functools.partial(self._write, describe), self._leave)

    def _enter(self, args: Args, kwargs: Named) -> _Before | None:
        if self._nested:
            return None
        self._nested = True
        before = _Before(self.session.clock.stage)
        em = self.session.local.em or self.session.emitter()
        guarded(em, self._begin, em, before, args, kwargs)
        return before

    def _leave(self, before: _Before | None, failed: BaseException | None) -> None:
        if before is not None:
            self._nested = False
            self.session.stage(self.session.local.em or self.session.emitter(), before.stage)

    def _begin(
        self, em: Emitter, before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.session.stage(em, "checkpoint")
        target = args[0] if args else None
        if is_a(target, torch.nn.Module):
            before.digests.update(_digests(target))
            before.ties.update(_ties(target))
            before.shared = _shared(target, _state_of(args, kwargs))
            if before.shared:
                before.made = self._made.facts(_state_of(args, kwargs))
        elif is_a(target, torch.optim.Optimizer):
            before.changes = optimizer_groups.of_optimizer(target, _state_of(args, kwargs))
        elif is_a(target, lr_scheduler.LRScheduler):
            before.changes = optimizer_groups.of_scheduler(target, _state_of(args, kwargs))

    def _write(
        self, describe: _Describe, before: _Before | None, args: Args, kwargs: Named, result: Any
    ) -> None:
        if before is None:
            return
        em = self.session.local.em or self.session.emitter()
        fields = describe(before, args, kwargs, result)
        moment = "save" if fields["op"] == "save" else "load"
        tell(self.session, self.session.hooks.after_state, em, moment)
        em.event("checkpoint", {key: value for key, value in fields.items() if value is not None})
        if fields["op"] == "save":  # a halted process writes no more, and the report names the file
            em.flush()

    def _describe_save(
        self, before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        fields = _describe_save(before, args, kwargs, result)
        if self.session.compared is not None:
            state = _saved(args, kwargs)
            found = itertools.islice(_values_in("", state), _MAX_VALUES)
            fields["values"] = {
                name: fingerprint(value) if isinstance(value, torch.Tensor) else value
                for name, value in found
            }
        return fields

    def _describe_module(
        self, before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        module, state = args[0], _state_of(args, kwargs)
        now = _digests(module)
        own = {name for name, _ in named_tensors(module, again=True)}
        own.update(name for name, _ in named_tensors(module, "_buffers", again=True))
        path = self.session.tracker.modules.find(module)[0]
        after = _ties(module)
        self._averages.follow(module, path, now)
        return {
            "op": "load_state_dict",
            "target": path or dotted(class_of(module)),
            "missing": _keys(getattr(result, "missing_keys", ())),
            "unexpected": _keys(getattr(result, "unexpected_keys", ())),
            "changed": _changed(before.digests, now),
            "entries": len(state),
            "matched": sum(key in own for key in state),
            "shared": before.shared,
            **before.made,
            "untied": [f"{path}.{name}" for name in before.ties if name not in after][:_MAX_KEYS],
            "values": {
                f"{path}.{name}": now[name]
                for name, _ in itertools.islice(named_tensors(module), _MAX_VALUES)
                if now[name] is not None
            },
            "where": where(),
        }

    def _describe_optimizer(
        self, before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        state = _state_of(args, kwargs)
        return {
            "op": "load_state_dict",
            "target": dotted(type(args[0])),
            "owner": owner_of(self.session.live.live_optimizers(), args[0]),
            "changed": before.changes,
            "entries": len(state.get("state", ())),
            "where": where(),
        }


def _keys(names: Iterable[Any]) -> list[str]:
    return [masking.key(str(name)) for name in itertools.islice(names, _MAX_KEYS)]


def _state_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    state = args[1] if len(args) > 1 else kwargs.get("state_dict")
    return state if isinstance(state, Mapping) else {}


def _ties(module: torch.nn.Module) -> _Ties:
    """Parameters with more than one name."""
    named = {name: id(p) for name, p in named_tensors(module, again=True)}
    counts = Counter(named.values())
    return {name: identity for name, identity in named.items() if counts[identity] > 1}


def _shared(module: torch.nn.Module, state: Mapping[str, Any]) -> int:
    """Number of given tensors that share memory with those of the module."""
    count = 0
    for name, own in named_tensors(module, again=True):
        given = state.get(name)
        if not is_a(given, torch.Tensor) or is_lazy(own) or is_lazy(given):
            continue
        own, given = as_plain(own), as_plain(given)  # noqa: PLW2901
        if own.numel() and given.device == own.device:
            count += given.data_ptr() == own.data_ptr()
    return count


def _digests(module: torch.nn.Module) -> dict[str, str | None]:
    tensors = [*named_tensors(module), *named_tensors(module, "_buffers")]
    return {
        name: fingerprint(tensor) if as_plain(tensor).is_cpu and not is_lazy(tensor) else None
        for name, tensor in tensors
    }


def _changed(was: Mapping[str, str | None], now: Mapping[str, str | None]) -> int | None:
    """Number of values that differ; None if no known value differs and others are unknown."""
    count = sum(was.get(key) != digest for key, digest in now.items())
    return None if not count and None in now.values() else count


def _describe_save(
    before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    path = args[1] if len(args) > 1 else next((kwargs[k] for k in _PATHS if k in kwargs), None)
    if not isinstance(path, (str, PathLike)):  # an open file, or an object that writes several
        path = getattr(path, "name", None) or getattr(path, "path", None)
    return _describe_file("save", _saved(args, kwargs), path)


def _saved(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The object that is saved."""
    return args[0] if args else kwargs.get("obj", kwargs.get("state_dict"))


def _values_in(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The numbers, and the tensors of the host, in nested dicts and lists, by their keys."""
    if is_a(value, torch.Tensor):
        if as_plain(value).is_cpu and not is_lazy(value):
            yield name, value
    elif type(value) in (int, float, bool):
        if not masking.hides(name.rpartition(".")[2], value) and abs(value) < LARGEST_WHOLE:
            yield name, value
    elif depth < _MAX_DEPTH:
        pairs: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            pairs = list(dict.items(value))
        elif type(value) in (list, tuple):
            pairs = enumerate(value)
        for key, item in pairs:
            part = masking.key(str(key)) if type(key) in (str, int) else "?"
            yield from _values_in(f"{name}.{part}" if name else part, item, depth + 1)


def _describe_load(
    before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    return _describe_file("load", result, args[0] if args else kwargs.get("f"))


def _describe_file(op: str, state: Any, path: Any) -> dict[str, Any]:
    items = list(state.items())[:_MAX_KEYS] if isinstance(state, dict) else []
    parts = {
        masking.key(str(key)): part for key, value in items if (part := _part(value)) is not None
    }
    whole = _part(state)
    if whole is not None and whole["kind"] in _ALONE:
        parts[whole["kind"]] = whole
    numbers = {
        masking.key(str(k)): v for k, v in items if type(v) is int and abs(v) < LARGEST_WHOLE
    }
    return {
        "op": op,
        "target": dotted(type(state)),
        "path": masking.path(fsdecode(path)) if isinstance(path, (str, PathLike)) else None,
        "entries": len(state) if isinstance(state, dict) else None,
        "parts": parts,
        "numbers": numbers or None,
        "where": where(),
    }


def _part(value: Any) -> dict[str, Any] | None:
    """The kind of one entry of a checkpoint, as far as its keys show."""
    if _is_rng(value):
        return {"kind": "rng"}
    if not isinstance(value, dict) or not value:
        return None
    if value.keys() >= _OPTIMIZER and isinstance(value["param_groups"], list):
        groups = [group for group in value["param_groups"] if isinstance(group, dict)]
        rates = [group.get("initial_lr", group.get("lr")) for group in groups]
        return {
            "kind": "optimizer",
            "params": sum(len(group.get("params", ())) for group in groups),
            "entries": len(value["state"]),
            "lr": [rate for rate in rates if isinstance(rate, (int, float))],
            "dtypes": _dtypes(value["state"]),
        }
    if value.keys() >= _SCALER:
        return {"kind": "scaler", "scale": summarize(value["scale"])}
    if _SCHEDULER in value:
        return {"kind": "scheduler", "last_epoch": summarize(value[_SCHEDULER])}
    tensors = all(isinstance(item, torch.Tensor) for item in value.values())
    return {"kind": "model", "entries": len(value)} if tensors else None


def _dtypes(state: Any) -> list[str]:
    """The dtypes of floating-point tensors in an optimizer's state."""
    entries = state.values() if isinstance(state, Mapping) else ()
    found = {
        str(tensor.dtype).removeprefix("torch.")
        for entry in entries
        if isinstance(entry, Mapping)
        for tensor in entry.values()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dim()
    }
    return sorted(found)


def _is_rng(value: Any) -> bool:
    """The state of a generator of torch, alone or by name among others."""
    if isinstance(value, Mapping) and len(value) <= _MAX_KEYS:
        return any(isinstance(v, torch.Tensor) and _is_rng(v) for v in value.values())
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.uint8
        and value.dim() == 1
        and value.numel() > _RNG_BYTES
    )


def _describe_scaler(
    before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    return {"op": "load_state_dict", "target": dotted(type(args[0])), "where": where()}


def _describe_scheduler(
    before: _Before, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    return {
        "op": "load_state_dict",
        "target": dotted(type(args[0])),
        "changed": before.changes,
        "where": where(),
    }
