"""Gradient clipping by norm and by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import utils

from traincheck.collect.emit import Emitter
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.places import where
from traincheck.collect.summarize import summarize
from traincheck.collect.wrap import Describe, span_wrapper
from traincheck.schema.events import Families


class Clipping(Instrument):
    """The result of clipping by norm is the norm before clipping."""

    name = "clipping"
    families = (Families.CLIP_NORM, Families.CLIP_VALUE)

    def install(self) -> None:
        self.replace(utils, "clip_grad_norm_", self._wrap(Families.CLIP_NORM, "max_norm"))
        self.replace(utils, "clip_grad_value_", self._wrap(Families.CLIP_VALUE, "clip_value"))

    def _wrap(self, family: str, limit: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda original: span_wrapper(original, self.session, _describer(family, limit))


def _describer(family: str, limit: str) -> Describe:
    def describe(
        em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> dict[str, Any]:
        named: dict[str, Any] = {}
        given = kwargs.get(limit, args[1] if len(args) > 1 else None)
        if given is not None:
            named[limit] = summarize(given)
        parameters = args[0] if args else kwargs.get("parameters")
        if isinstance(parameters, torch.Tensor):
            named["parameters"] = 1
        elif isinstance(parameters, (list, tuple)):  # counting a generator would have emptied it
            named["parameters"] = len(parameters)
        return {"api": family, "args": named, "result": summarize(result), "where": where()}

    return describe
