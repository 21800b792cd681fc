"""Gradients from a backward pass to the update: scaled by a GradScaler, and clipped.

Clipping is by norm or by value, also of sharded parameters. Autocast is part of the context of
every call.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import utils

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.instruments._wrap import Describe, span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.observers.import_hook import ImportHook
from traincheck.collect.tensors.summarize import summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import tell
from traincheck.collect.tracking.optimizer_groups import owner_of
from traincheck.schema.torch_api import Families

# From torch 2.4; older ones are for one kind of device
_SETTERS = (
    "set_autocast_enabled",
    "set_autocast_cpu_enabled",
    "set_autocast_xla_enabled",
    "set_autocast_ipu_enabled",
)


class Amp(Instrument):
    """A scaler's step may skip the optimizer; the step counter must still count it."""

    name = "amp"
    always = True

    def install(self) -> None:
        for name in _SETTERS:  # the context managers call them, too
            if hasattr(torch, name):
                self.replace(torch, name, self._wrap_setter)
        scaler = torch.amp.GradScaler
        self.replace(scaler, "step", self._wrap_step)
        for method, family in (
            ("scale", "torch.amp.GradScaler.scale"),
            ("unscale_", Families.UNSCALE),
            ("update", Families.SCALER_UPDATE),
        ):
            if self.wants_call(family):
                self.replace(scaler, method, self._wrapping(family))

    def _wrap_setter(self, original: Callable[..., None]) -> Callable[..., None]:
        recording = self.session.recording

        def setter(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            recording.autocast = True

        return hidden(setter)

    def _owner(self, optimizer: Any) -> str | None:
        return owner_of(self.session.live.live_optimizers(), optimizer)

    def _describe(self, family: str, args: tuple[Any, ...], result: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "api": family,
            "args": {"enabled": args[0].is_enabled()},
            "result": summarize(result),
            "where": where(),
        }
        if len(args) > 1 and isinstance(args[1], torch.optim.Optimizer):
            fields["owner"] = self._owner(args[1])
        return fields

    def _wrapping(self, family: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            return self._describe(family, args, result)

        return lambda original: span_wrapper(original, self.session, describe)

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            return self._describe(Families.SCALER_STEP, args, result)

        def counted(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            tell(self.session, self.session.hooks.after_scaler, args[0])
            owner = self._owner(args[1] if len(args) > 1 else kwargs.get("optimizer"))
            if owner is not None:
                self.session.steps.scaler_step(owner)
                watch_for_boundary(self.session)

        return span_wrapper(original, self.session, describe, counted=counted)


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
        describe = self._describer(Families.FSDP_CLIP, "max_norm", family=Families.CLIP_NORM)
        self.replace(
            module.FullyShardedDataParallel,
            "clip_grad_norm_",
            lambda original: span_wrapper(original, self.session, describe),
        )

    def _wrap(self, family: str, limit: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        before = self._before if self.session.hooks.before_clip.all else None
        return lambda original: span_wrapper(
            original, self.session, self._describer(family, limit), before=before
        )

    def _before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        tell(self.session, self.session.hooks.before_clip, args[0] if args else None)

    @staticmethod
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
            elif isinstance(parameters, (list, tuple)):  # to count a generator would empty it
                named["parameters"] = len(parameters)
            told = {"api": api, "args": named, "result": summarize(result), "where": where()}
            return told if family is None else {**told, "family": family}

        return describe
