"""Who sets the state of torch's random generator, as contexts with a stream of their own do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from traincheck.collect.emit import Emitter
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.places import where
from traincheck.collect.summarize import summarize
from traincheck.collect.wrap import span_wrapper
from traincheck.schema.apis import Families


class RandomState(Instrument):
    """Seeds are in rng.py. What sets the state through ``torch.random`` is not seen."""

    name = "rng_state"
    families = (Families.SET_RNG_STATE,)

    def install(self) -> None:
        self.replace(
            torch, "set_rng_state", lambda original: span_wrapper(original, self.session, _describe)
        )


def _describe(
    em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> dict[str, Any]:
    given = args[0] if args else kwargs.get("new_state")
    return {
        "api": Families.SET_RNG_STATE,
        "args": {"new_state": summarize(given)},
        "where": where(),
    }
