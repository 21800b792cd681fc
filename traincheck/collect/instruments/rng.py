"""Random generators: seeds given by the user, and torch's CPU generator at each step.

In the selective view of one process its state is taken at the first steps, at every 10th, and when
it was seeded or set: drawing alone never restores an earlier state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.templates import GENERATOR_STATE
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.summarize import summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.schema.torch_api import Families


class Rng(Instrument):
    """Only torch's CPU state is cheap enough for every step: 3 us; Python's, numpy's cost 15."""

    name = "rng"

    def install(self) -> None:
        self._depth = [0]
        self._is_sparse = self.session.needs is not None
        self._has_ranks = False
        self.replace(torch, "manual_seed", lambda f: self._wrap(f, "torch"))
        self.replace(torch.random, "manual_seed", lambda f: self._wrap(f, "torch"))
        self.replace(torch.cuda, "manual_seed", lambda f: self._wrap(f, "cuda"))
        self.replace(torch.cuda, "manual_seed_all", lambda f: self._wrap(f, "cuda"))
        self.replace(random, "seed", lambda f: self._wrap(f, "python"))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self.replace(numpy.random, "seed", lambda f: self._wrap(f, "numpy"))
        if self.session.compared is None:  # else states of all generators are recorded there
            self.listen(self.session.hooks.at_step_end, self._state)

    def _wrap(self, original: Callable[..., Any], source: str) -> Callable[..., Any]:
        depth, session = self._depth, self.session

        def seed(*args: Any, **kwargs: Any) -> Any:
            session.is_rng_set = True
            if session.compared is not None:
                session.compared.seeded.add(source)
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0] and session.recording.on:
                    given = args[0] if args else next(iter(kwargs.values()), None)
                    em = session.local.em or session.emitter()
                    guarded(em, self._seeded, em, source, given)

        return hidden(seed)

    def _seeded(self, em: Emitter, source: str, given: Any) -> None:
        fields: dict[str, Any] = {"source": source, "change": "seed", "where": where()}
        if isinstance(given, int) and -(1 << 63) <= given < 1 << 63:
            fields["seed"] = given
        if source == "torch":
            fields["fingerprint"] = fingerprint(torch.default_generator.get_state())
        em.event("rng", fields)

    def _state(self, em: Emitter) -> None:
        session = self.session
        is_sampled = session.stats.is_sampled
        if is_sampled:  # asked for now and then: the answer hardly changes, and takes a while
            self._has_ranks = _has_ranks()  # those are compared in every step
        is_due = session.is_rng_set or self._has_ranks or is_sampled or not self._is_sparse
        session.is_rng_set = False
        if not is_due:
            return
        found = fingerprint(torch.default_generator.get_state()) or ""
        em.write_json("rng", GENERATOR_STATE % found.encode())


_has_ranks: Callable[[], bool] = getattr(torch.distributed, "is_initialized", lambda: False)


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
