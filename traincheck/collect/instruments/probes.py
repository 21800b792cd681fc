"""Probes: experiments on copies of the process, at a few calls of its models.

Installed only when the settings ask for it. Outside of these calls it counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.moment import Args, Named
from traincheck.collect.probes.engine import ProbeEngine
from traincheck.collect.tensors.reading import is_training
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.recording_state import is_traced, state

# Within backward: forwards there are those that checkpointing repeats.
_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class _Depth(threading.local):
    """Whether a module is being called in this thread."""

    is_inside = False


class Probes(Instrument):
    """Watches the outermost calls of modules, and backward passes."""

    name = "probes"

    def is_wanted(self) -> bool:
        return self.session.settings.probe

    def install(self) -> None:
        self._engine = ProbeEngine(self.session)
        self._depth = _Depth()
        self._is_on = True
        hooks = self.session.hooks
        hooks.around_modules = self._wrap_call
        self.listen(hooks.before_backward, self._before_backward)

    def remove(self) -> None:
        super().remove()
        self._is_on = False

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        depth, recording, engine = self._depth, self.session.recording, self._engine
        enter, self_ = self._enter, self

        # The profiler of torch reads the local named self
        def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            is_idle = depth.is_inside or not (recording.on and self_._is_on)
            if is_traced() or is_idle or state._is_compiling_flag:
                return original(self, *args, **kwargs)
            depth.is_inside = True
            try:
                enter(self, args, kwargs)
                if engine.child is None:
                    return original(self, *args, **kwargs)
                try:
                    return original(self, *args, **kwargs)
                except BaseException as error:  # in a copy of the process
                    engine.child.fault(error)
            finally:
                depth.is_inside = False

        return hidden(__call__)

    def _enter(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.session.is_worker or _graph_task() != -1:
            return
        self._engine.observe(module, args, kwargs)
        if is_training(module):
            self._engine.enter(module, args, kwargs)

    def _before_backward(self, args: Args, kwargs: Named) -> None:
        self._engine.passed()
