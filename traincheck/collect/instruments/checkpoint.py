"""Saving and loading state: which, what was missing, and how many parameters a load changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from traincheck.collect.emit import hidden
from traincheck.collect.fingerprint import fingerprint
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.naming import class_of
from traincheck.collect.summarize import dotted

_MAX_KEYS = 20


class Checkpoint(Instrument):
    """The stage is "checkpoint" while state is saved or loaded."""

    name = "checkpoint"
    kinds = ("checkpoint",)

    def install(self) -> None:
        self.replace(torch, "save", lambda f: self._wrap_file(f, "save", 1))
        self.replace(torch, "load", lambda f: self._wrap_file(f, "load", 0))
        self.replace(torch.nn.Module, "load_state_dict", self._wrap_module)
        self.replace(torch.optim.Optimizer, "load_state_dict", self._wrap_optimizer)

    def _run(self, call: Callable[[], Any], describe: Callable[[Any], dict[str, Any]]) -> Any:
        session = self.session
        em = session.local.em or session.emitter()
        if not session.switch.on or em.busy:
            return call()
        previous = session.clock.stage
        session.stage(em, "checkpoint")
        try:
            result = call()
        finally:
            session.stage(em, previous)
        em.busy = True
        try:
            fields = describe(result)
            em.event(
                "checkpoint", {key: value for key, value in fields.items() if value is not None}
            )
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self._run, error)
        em.busy = False
        return result

    def _wrap_file(
        self, original: Callable[..., Any], op: str, position: int
    ) -> Callable[..., Any]:
        run = self._run

        def file_operation(*args: Any, **kwargs: Any) -> Any:
            def describe(result: Any) -> dict[str, Any]:
                saved = (args[0] if args else kwargs.get("obj")) if op == "save" else result
                path = args[position] if len(args) > position else kwargs.get("f")
                return {
                    "op": op,
                    "target": dotted(type(saved)),
                    "path": os.fspath(path) if isinstance(path, (str, os.PathLike)) else None,
                    "entries": len(saved) if isinstance(saved, dict) else None,
                }

            return run(lambda: original(*args, **kwargs), describe)

        return hidden(file_operation)

    def _wrap_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        run = self._run

        def load_state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = self._digests(module)

            def describe(result: Any) -> dict[str, Any]:
                after = self._digests(module)
                state = args[0] if args else kwargs.get("state_dict", {})
                return {
                    "op": "load_state_dict",
                    "target": self.session.tracker.find(module)[0] or dotted(class_of(module)),
                    "missing": list(getattr(result, "missing_keys", ()))[:_MAX_KEYS],
                    "unexpected": list(getattr(result, "unexpected_keys", ()))[:_MAX_KEYS],
                    "changed": sum(1 for key, digest in after.items() if before.get(key) != digest),
                    "entries": len(state),
                }

            return run(lambda: original(module, *args, **kwargs), describe)

        return hidden(load_state_dict)

    def _digests(self, module: torch.nn.Module) -> dict[str, str | None]:
        if not self.session.switch.on:
            return {}
        tensors = [*module.named_parameters(), *module.named_buffers()]
        return {name: fingerprint(tensor) if tensor.is_cpu else None for name, tensor in tensors}

    def _wrap_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        run = self._run

        def load_state_dict(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            def describe(result: Any) -> dict[str, Any]:
                state = args[0] if args else kwargs.get("state_dict", {})
                entries = len(state.get("state", {})) if isinstance(state, dict) else None
                return {
                    "op": "load_state_dict",
                    "target": dotted(type(optimizer)),
                    "entries": entries,
                }

            return run(lambda: original(optimizer, *args, **kwargs), describe)

        return hidden(load_state_dict)
