"""State dicts of models: the model of each, and whether its tensors were written since."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from traincheck.collect.tensors.reading import is_a, is_opaque, unseen
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.handlers import give_back

_MOST_TENSORS = 64  # whose versions are summed


class StateDict(NamedTuple):
    """A state that `Module.state_dict` returned. where: the line that called it."""

    ref: weakref.ref[Any]
    versions: int | None
    where: str | None


class StateDictObserver:
    """Remembers state dicts while they are alive, by identity. Keeps none alive, changes none."""

    def __init__(self) -> None:
        self._made: dict[int, StateDict] = {}

    def wrap(self, original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
        """`Module.state_dict`, whose outermost calls are remembered."""

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            state = original(*args, **kwargs)
            if len(args) == 1 and "destination" not in kwargs and is_on():
                self._remember(state)
            return state

        return hidden(state_dict)

    def facts(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Fields for the record of its load; empty for a state that is not from a model."""
        made = self._made.get(id(state))
        if made is None or made.ref() is not state:
            return {}
        now = _versions(state.values())
        is_stale = None if now is None or made.versions is None else now != made.versions
        return {"made": made.where, "is_stale": is_stale}

    def _remember(self, state: Any) -> None:
        try:
            identity = id(state)
            ref = weakref.ref(state, lambda _: self._made.pop(identity, None))
            self._made[identity] = StateDict(ref, _versions(state.values()), where())
        except Exception as error:  # an override returns something else, or has no weak reference
            give_back(error)


def _versions(tensors: Iterable[Any]) -> int | None:
    """The number of writes to some tensors; None if it is not counted, as in inference mode."""
    some = itertools.islice(tensors, _MOST_TENSORS)
    with unseen():
        try:
            return sum(t._version for t in some if is_a(t, torch.Tensor) and not is_opaque(type(t)))
        except RuntimeError as error:
            give_back(error)
            return None
