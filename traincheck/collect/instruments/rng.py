"""Random generators: seeds given by the user, and torch's CPU generator at each step."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from traincheck.collect.emit import Emitter, hidden
from traincheck.collect.fingerprint import fingerprint
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.wrap import guarded


class Rng(Instrument):
    """Only torch's CPU state is cheap enough for every step: 3 us; Python's, numpy's cost 15."""

    name = "rng"
    kinds = ("rng",)

    def install(self) -> None:
        self._depth = [0]
        self.replace(torch, "manual_seed", lambda f: self._wrap(f, "torch"))
        self.replace(torch.random, "manual_seed", lambda f: self._wrap(f, "torch"))
        self.replace(torch.cuda, "manual_seed", lambda f: self._wrap(f, "cuda"))
        self.replace(torch.cuda, "manual_seed_all", lambda f: self._wrap(f, "cuda"))
        self.replace(random, "seed", lambda f: self._wrap(f, "python"))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self.replace(numpy.random, "seed", lambda f: self._wrap(f, "numpy"))
        self.session.at_step_end.append(self._state)

    def remove(self) -> None:
        super().remove()
        if self._state in self.session.at_step_end:  # else a fault has taken it out before
            self.session.at_step_end.remove(self._state)

    def _wrap(self, original: Callable[..., Any], source: str) -> Callable[..., Any]:
        depth, session = self._depth, self.session

        def seed(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0] and session.switch.on:
                    given = args[0] if args else next(iter(kwargs.values()), None)
                    guarded(session.local.em or session.emitter(), self._seeded, source, given)

        return hidden(seed)

    def _seeded(self, em: Emitter, source: str, given: Any) -> None:
        fields: dict[str, Any] = {"source": source, "change": "seed"}
        if isinstance(given, int) and -(1 << 63) <= given < 1 << 63:
            fields["seed"] = given
        if source == "torch":
            fields["fingerprint"] = fingerprint(torch.default_generator.get_state())
        em.event("rng", fields)

    def _state(self, em: Emitter) -> None:
        found = fingerprint(torch.default_generator.get_state()) or ""
        em.ready("rng", _STATE % found.encode())


_STATE = b'"source":"torch","change":"state","fingerprint":"%b"'
