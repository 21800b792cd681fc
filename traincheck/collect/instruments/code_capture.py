"""TorchScript, fx and export read or trace code instead of running it: recording pauses.

Function modes see every call: from the first mode on, reads of traincheck are hidden from them.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.tensors.reading import is_a, modules_in
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE, hidden


class Transforms(Instrument):
    """They must find the originals, by source and identity. Traced calls are not training."""

    name = "transforms"
    always = True

    def install(self) -> None:
        self._depth = [0]
        for name in ("script", "trace", "trace_module"):
            self.replace(torch.jit, name, self._wrap_script if name == "script" else self._wrap)
        # User classes that derive from ScriptModule call this one directly
        recursive = sys.modules.get("torch.jit._recursive")
        if recursive is not None:
            self.replace(recursive, "create_script_module", self._wrap_create)
        fx = sys.modules.get("torch.fx._symbolic_trace")
        if fx is not None:
            self.replace(fx.Tracer, "trace", self._wrap)
        export = sys.modules.get("torch.export")
        if export is not None:
            self.replace(export, "export", self._wrap)
        for name in ("torch.overrides", "torch.utils._device"):  # both enter function modes
            module = sys.modules.get(name)
            if hasattr(module, "_push_mode"):
                self.replace(module, "_push_mode", self._wrap_push)

    def _wrap_push(self, original: Callable[..., None]) -> Callable[..., None]:
        """From now on it is worth asking whether a mode would see what we read."""
        recording = self.session.recording

        def _push_mode(mode: Any) -> None:
            recording.modes = True
            original(mode)

        return hidden(_push_mode)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        em = self.session.local.em or self.session.emitter()
        busy, em.busy = em.busy, True
        self._depth[0] += 1
        try:
            with contextlib.ExitStack() as stack:
                if self._depth[0] == 1:
                    for action in self.session.moments.transforms.all:
                        action()
                    for instrument in self.session.installed:
                        if instrument.is_seen_by_transforms:
                            stack.enter_context(instrument.suspended())
                    stack.enter_context(self.session.moments.modules.suspended())
                yield
        finally:
            self._depth[0] -= 1
            em.busy = busy

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def transform(*args: Any, **kwargs: Any) -> Any:
            with self._aside():
                return original(*args, **kwargs)

        return hidden(transform)

    def _wrap_create(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_script_module(*args: Any, **kwargs: Any) -> Any:
            with self._aside(), _originals_in(args[0] if args else None):
                return original(*args, **kwargs)

        return hidden(create_script_module)

    def _wrap_script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def script(*args: Any, **kwargs: Any) -> Any:
            with self._aside(), _originals_in(args[0] if args else None):
                # names are resolved in the caller's frame, which is now one further up
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
                first: Any = args[0] if args else None
                plain = getattr(first, "__wrapped__", None)
                # A model may hold a replacement as an attribute (``self.act = F.relu``)
                if (
                    isinstance(plain, types.FunctionType)
                    and first.__code__.co_filename == HIDDEN_FILE
                ):
                    kwargs["_rcb"] = torch._jit_internal.createResolutionCallbackFromClosure(plain)
                    args = (plain, *args[1:])
                return original(*args, **kwargs)

        return hidden(script)


@contextlib.contextmanager
def _originals_in(model: Any) -> Iterator[None]:
    """Restore builtins that modules hold (``self.act = F.gelu``) temporarily.

    TorchScript recognizes a builtin by its identity; it compiles a Python function from its source.
    """
    held = [
        (vars(module), name, value, original)
        for module in (modules_in(model) if is_a(model, torch.nn.Module) else ())
        for name, value in vars(module).items()
        if (original := _builtin_behind(value)) is not None
    ]
    for attributes, name, _, original in held:
        attributes[name] = original
    try:
        yield
    finally:
        for attributes, name, ours, _ in held:
            attributes[name] = ours


def _builtin_behind(value: Any) -> types.BuiltinFunctionType | None:
    called = value if isinstance(value, types.FunctionType) else vars(type(value)).get("__call__")
    if not isinstance(called, types.FunctionType) or called.__code__.co_filename != HIDDEN_FILE:
        return None
    original = getattr(value, "__wrapped__", None)
    return original if isinstance(original, types.BuiltinFunctionType) else None
