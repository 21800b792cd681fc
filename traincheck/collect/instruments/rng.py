"""Random generators: seeds given by the user, and torch's CPU generator at each step.

In the selective view of one process its state is taken at the first steps, at every 10th, and when
it was seeded or set: drawing alone never restores an earlier state.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from traincheck.collect.instruments._wrap import span_listener
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.generators import seeders, seeders_of_devices
from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.templates import GENERATOR_STATE
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.summarize import summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import guarded
from traincheck.schema.torch_api import Families


class Rng(Instrument):
    """Only torch's CPU state is cheap enough for every step: 3 us; Python's, numpy's cost 15."""

    name = "rng"

    def install(self) -> None:
        self._depth = 0
        self._is_sparse = self.session.needs is not None
        self._has_ranks = False
        if "numpy" in sys.modules:  # which loads its generators when they are first used
            importlib.import_module("numpy.random")
        for holder, name, source in (*seeders(), *seeders_of_devices()):
            around = Around(partial(self._enter, source), left=self._leave, always=True)
            self.listen(self.session.moments.at(holder, name), around)
        if self.session.compared is None:  # else states of all generators are recorded there
            self.listen(self.session.hooks.at_step_end, self._state)

    def _enter(self, source: str, args: Args, kwargs: Named) -> tuple[str, Any]:
        session = self.session
        session.is_rng_set = True
        if session.compared is not None:
            session.compared.seeded.add(source)
        self._depth += 1
        return source, args[0] if args else next(iter(kwargs.values()), None)

    def _leave(self, seed: tuple[str, Any] | None, failed: BaseException | None) -> None:
        if seed is not None:
            self._depth -= 1
            if not self._depth and self.session.recording.on:
                em = self.session.local.em or self.session.emitter()
                guarded(em, self._seeded, em, *seed)

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
        moments, is_set = self.session.moments, Around(self._set, always=True)
        self.listen(moments.at(torch, "set_rng_state"), is_set)
        self.listen(moments.at(torch.random, "set_rng_state"), is_set)
        if self.wants_call(Families.SET_RNG_STATE):
            around = span_listener(self.session, _describe)
            self.listen(moments.at(torch, "set_rng_state"), around)

    def _set(self, args: Args, kwargs: Named) -> None:
        self.session.is_rng_set = True


def _describe(
    em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    given = args[0] if args else kwargs.get("new_state")
    return {
        "api": Families.SET_RNG_STATE,
        "args": {"new_state": summarize(given)},
        "where": where(),
    }
