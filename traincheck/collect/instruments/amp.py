"""Mixed precision: GradScaler. Autocast is part of every call's context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from traincheck.collect.context import watch_for_boundary
from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
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
