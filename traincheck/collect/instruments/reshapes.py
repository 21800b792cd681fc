"""Views in place of a transpose. All others, thousands per step, are not recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any

import torch

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.tensors.reading import has_mode, unseen
from traincheck.collect.tensors.summarize import dumps, summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, context, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.schema.shapes import is_for_exchange
from traincheck.schema.torch_api import RESHAPES

_MOST_KNOWN = 4096  # variable shapes must not grow the training process


class Reshapes(Instrument):
    """``view`` and ``reshape``. Not needed at level deep, which records all operators."""

    name = "reshapes"
    is_seen_by_transforms = True

    def is_wanted(self) -> bool:
        needs = self.session.needs
        is_asked = needs is None or not RESHAPES.isdisjoint(needs.calls)
        return is_asked and not self.session.settings.is_deep

    def install(self) -> None:
        for api in sorted(RESHAPES):
            holder = torch.Tensor if api.startswith("torch.Tensor.") else torch
            name = api.rpartition(".")[2]
            self.replace(holder, name, partial(self._wrap, api), idles=True)

    def _wrap(self, api: str, function: Callable[..., Any]) -> Callable[..., Any]:
        session = self.session
        recording, local = session.recording, session.local
        known: dict[tuple[torch.Size, torch.Size], bool] = {}

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_traced() or not recording.on or state._is_compiling_flag:
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            em = local.em or session.emitter()
            # Views by torch itself are not the user's
            if em.busy or em.inner is not None or not args:
                return result
            given = args[0]
            if type(given) is not torch.Tensor or type(result) is not torch.Tensor:
                return result
            try:
                if recording.modes and has_mode():  # which would see the shapes being read
                    with unseen():
                        shapes = given.shape, result.shape
                else:
                    shapes = given.shape, result.shape
                is_told = known.get(shapes)
                if is_told is None:
                    if len(known) >= _MOST_KNOWN:
                        known.clear()
                    is_told = known[shapes] = is_for_exchange(*shapes)
                if is_told:
                    guarded(em, self._record, em, api, given, result)
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(self._wrap, error)
            return result

        return hidden(wrapper)

    def _record(self, em: Emitter, api: str, given: torch.Tensor, result: torch.Tensor) -> None:
        span = em.next_span
        em.next_span = span + 1
        fields = {
            "api": api,
            "args": {"0": summarize(given)},
            "result": summarize(result),
            "where": where(),
        }
        if em.module is not None:
            fields["module"] = self.session.tracker.modules.child(em.module, None)
        em.call(span, em.top, monotonic_ns(), dumps(fields)[1:-1] + context())
