"""Saving and loading state: which, what was missing, and how many parameters a load changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from traincheck.collect.emit import Emitter, hidden
from traincheck.collect.fingerprint import fingerprint
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.naming import class_of
from traincheck.collect.summarize import dotted
from traincheck.collect.wrap import guarded

_MAX_KEYS = 20

_Digests: TypeAlias = dict[str, str | None]
# Fields of the record, from what was there before, arguments and result
_Describe: TypeAlias = Callable[[_Digests, tuple[Any, ...], Mapping[str, Any], Any], dict[str, Any]]


class Checkpoint(Instrument):
    """The stage is "checkpoint" while state is saved or loaded."""

    name = "checkpoint"
    kinds = ("checkpoint",)

    def install(self) -> None:
        self.replace(torch, "save", lambda f: self._wrap(f, _describe_save))
        self.replace(torch, "load", lambda f: self._wrap(f, _describe_load))
        module, optimizer = torch.nn.Module, torch.optim.Optimizer
        self.replace(module, "load_state_dict", lambda f: self._wrap(f, self._describe_module))
        self.replace(optimizer, "load_state_dict", lambda f: self._wrap(f, _describe_optimizer))

    def _wrap(self, original: Callable[..., Any], describe: _Describe) -> Callable[..., Any]:
        session = self.session

        def operation(*args: Any, **kwargs: Any) -> Any:
            em = session.local.em or session.emitter()
            if not session.switch.on or em.busy:
                return original(*args, **kwargs)
            stage, before = session.clock.stage, _Digests()
            guarded(em, self._begin, before, args)
            try:
                result = original(*args, **kwargs)
            finally:
                guarded(em, session.stage, stage)
            guarded(em, self._write, describe, before, args, kwargs, result)
            return result

        return hidden(operation)

    def _begin(self, em: Emitter, before: _Digests, args: tuple[Any, ...]) -> None:
        self.session.stage(em, "checkpoint")
        if args and isinstance(args[0], torch.nn.Module):
            before.update(_digests(args[0]))

    def _write(
        self,
        em: Emitter,
        describe: _Describe,
        before: _Digests,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        fields = describe(before, args, kwargs, result)
        em.event("checkpoint", {key: value for key, value in fields.items() if value is not None})

    def _describe_module(
        self, before: _Digests, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        module = args[0]
        state = args[1] if len(args) > 1 else kwargs.get("state_dict", {})
        return {
            "op": "load_state_dict",
            "target": self.session.tracker.find(module)[0] or dotted(class_of(module)),
            "missing": list(getattr(result, "missing_keys", ()))[:_MAX_KEYS],
            "unexpected": list(getattr(result, "unexpected_keys", ()))[:_MAX_KEYS],
            "changed": sum(before.get(key) != digest for key, digest in _digests(module).items()),
            "entries": len(state),
        }


def _digests(module: torch.nn.Module) -> _Digests:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: fingerprint(tensor) if tensor.is_cpu else None for name, tensor in tensors}


def _describe_save(
    before: _Digests, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    path = args[1] if len(args) > 1 else kwargs.get("f")
    return _describe_file("save", args[0] if args else kwargs.get("obj"), path)


def _describe_load(
    before: _Digests, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    return _describe_file("load", result, args[0] if args else kwargs.get("f"))


def _describe_file(op: str, state: Any, path: Any) -> dict[str, Any]:
    return {
        "op": op,
        "target": dotted(type(state)),
        "path": os.fspath(path) if isinstance(path, (str, os.PathLike)) else None,
        "entries": len(state) if isinstance(state, dict) else None,
    }


def _describe_optimizer(
    before: _Digests, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    state = args[1] if len(args) > 1 else kwargs.get("state_dict", {})
    return {
        "op": "load_state_dict",
        "target": dotted(type(args[0])),
        "entries": len(state.get("state", {})) if isinstance(state, dict) else None,
    }
