"""``train()`` and ``eval()``: the outermost call only, not the recursion into children."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_compiling

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.schema.torch_api import Families


class Modes(Instrument):
    """``eval()`` calls ``train(False)``: both are recorded as ``eval``."""

    name = "modes"

    def install(self) -> None:
        self._depth = [0]
        self.replace(torch.nn.Module, "train", lambda f: self._wrap(f, Families.TRAIN))
        self.replace(torch.nn.Module, "eval", lambda f: self._wrap(f, Families.EVAL))

    def _wrap(self, original: Callable[..., Any], family: str) -> Callable[..., Any]:
        depth = self._depth

        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            mode = (
                bool(kwargs.get("mode", args[1] if len(args) > 1 else True))
                and family == Families.TRAIN
            )
            return {
                "api": Families.TRAIN if mode else Families.EVAL,
                "module": self.session.tracker.modules.find(args[0])[0],
                "where": where(),
            }

        recorded = span_wrapper(original, self.session, describe)

        def switch(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or depth[0]:
                return original(module, *args, **kwargs)
            depth[0] += 1
            try:
                return recorded(module, *args, **kwargs)
            finally:
                depth[0] -= 1

        return hidden(switch)
