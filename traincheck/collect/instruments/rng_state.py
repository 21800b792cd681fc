"""Calls that set the state of torch's random generator, such as contexts with their own stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.tensors.summarize import summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.schema.torch_api import Families


class RandomState(Instrument):
    """Seeds are in rng.py. Calls that set the state through ``torch.random`` are not recorded."""

    name = "rng_state"

    def is_wanted(self) -> bool:
        """Also where events of generators are recorded: these ask whether one was set."""
        needs = self.session.needs
        return super().is_wanted() or (needs is not None and "rng" in needs.kinds)

    def install(self) -> None:
        self.replace(torch, "set_rng_state", self._wrap)
        self.replace(torch.random, "set_rng_state", self._wrap_set)

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        ours = self._wrap_set(original)
        is_recorded = self.wants_call(Families.SET_RNG_STATE)
        return span_wrapper(ours, self.session, _describe) if is_recorded else ours

    def _wrap_set(self, original: Callable[..., None]) -> Callable[..., None]:
        session = self.session

        def set_rng_state(*args: Any, **kwargs: Any) -> None:
            session.is_rng_set = True
            original(*args, **kwargs)

        return hidden(set_rng_state)


def _describe(
    em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    given = args[0] if args else kwargs.get("new_state")
    return {
        "api": Families.SET_RNG_STATE,
        "args": {"new_state": summarize(given)},
        "where": where(),
    }
