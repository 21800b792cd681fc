"""Gradient clipping by norm and by value, also for sharded parameters."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import utils

from traincheck.collect.instruments._wrap import Describe, span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.observers.import_hook import ImportHook
from traincheck.collect.tensors.summarize import summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import tell
from traincheck.schema.torch_api import Families

# Module of the class; many programs do not use it, and importing it takes half a second.
_SHARDED = "torch.distributed.fsdp.fully_sharded_data_parallel"


class Clipping(Instrument):
    """The result of clipping by norm is the norm before clipping."""

    name = "clipping"

    def is_wanted(self) -> bool:
        return super().is_wanted() or bool(self.session.hooks.before_clip.all)

    def install(self) -> None:
        self._imports: ImportHook | None = None
        if distributed.is_available():
            known = sys.modules.get(_SHARDED)
            if known is not None:
                self._wrap_sharded(known)
            else:
                self._imports = ImportHook(_SHARDED.__eq__, self._wrap_sharded, self.session.fault)
                self._imports.install()
        self.replace(utils, "clip_grad_norm_", self._wrap(Families.CLIP_NORM, "max_norm"))
        self.replace(utils, "clip_grad_value_", self._wrap(Families.CLIP_VALUE, "clip_value"))

    def remove(self) -> None:
        if self._imports is not None:
            self._imports.remove()
        super().remove()

    def _wrap_sharded(self, module: types.ModuleType) -> None:
        """A method: its first argument is the model."""
        describe = _describer(Families.FSDP_CLIP, "max_norm", family=Families.CLIP_NORM)
        self.replace(
            module.FullyShardedDataParallel,
            "clip_grad_norm_",
            lambda original: span_wrapper(original, self.session, describe),
        )

    def _wrap(self, family: str, limit: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        before = self._before if self.session.hooks.before_clip.all else None
        return lambda original: span_wrapper(
            original, self.session, _describer(family, limit), before=before
        )

    def _before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        tell(self.session, self.session.hooks.before_clip, args[0] if args else None)


def _describer(api: str, limit: str, family: str | None = None) -> Describe:
    def describe(
        em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        named: dict[str, Any] = {}
        given = kwargs.get(limit, args[1] if len(args) > 1 else None)
        if given is not None:
            named[limit] = summarize(given)
        parameters = args[0] if args else kwargs.get("parameters")
        if isinstance(parameters, torch.Tensor):
            named["parameters"] = 1
        elif isinstance(parameters, (list, tuple)):  # counting a generator would have emptied it
            named["parameters"] = len(parameters)
        told = {"api": api, "args": named, "result": summarize(result), "where": where()}
        return told if family is None else {**told, "family": family}

    return describe
