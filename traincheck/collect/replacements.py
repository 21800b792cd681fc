"""Attributes that instruments replace. Several may replace the same one; each can be taken out.

A replacement calls what was there before. If another instrument has put that there, it is called
through a link, which leads further down once the other one is taken out.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from traincheck.collect.trace_writer.emitter import hidden

MISSING = object()  # in place of a value that a class inherits

_STACKS: dict[tuple[int, str], list[weakref.ref[Replacement]]] = {}  # the first one below
_LAYER = "_traincheck_layer"


def _stack(place: tuple[int, str]) -> list[Replacement]:
    """The replacements of an attribute, the first one below."""
    found = (ref() for ref in _STACKS.get(place, ()))
    return [layer for layer in found if layer is not None]


def _pile(place: tuple[int, str], layers: list[Replacement]) -> None:
    if layers:
        _STACKS[place] = list(map(weakref.ref, layers))
    else:
        _STACKS.pop(place, None)


class Replacement:
    """One attribute that an instrument replaces.

    Args:
        owner: the instrument. Its replacements are taken out together, the last one first.
        holder, attribute: where it is.
        stored: the value to restore, or `MISSING`.
    """

    def __init__(self, owner: object, holder: Any, attribute: str, stored: Any) -> None:
        self.holder, self.attribute = holder, attribute
        self._owner, self._stored = owner, stored
        self._place = id(holder), attribute
        self._value: Any = None
        self._found: Any = None  # when it was taken out: the program may have replaced it again
        self._calls: list[Any] = []  # what the replacement calls
        self._upper: Replacement | None = None  # while it is taken out
        below = _stack(self._place)
        # Not if the program has put its own function between.
        self._is_linked = (
            bool(below) and below[-1]._value is stored and below[-1]._owner is not owner
        )

    def below(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The function that a replacement of ``original`` has to call."""
        calls = self._calls = [original]
        if not self._is_linked:
            return original

        def link(*args: Any, **kwargs: Any) -> Any:
            return calls[0](*args, **kwargs)

        return hidden(functools.update_wrapper(link, original))

    def put_in(self, value: Any, *, is_of_program: bool = False) -> Callable[[], Any]:
        """Set the attribute. Returns a function that gives this object.

        A class that the program defines, or an object of it, leads to all that its methods know.
        What is put there leads to this object then, and nothing else does: both are freed together.
        """
        self._value = value
        _pile(self._place, [*_stack(self._place), self])
        if is_of_program:
            vars(value)[_LAYER] = self
        setattr(self.holder, self.attribute, value)
        return weakref.ref(self) if is_of_program else lambda: self

    def take_out(self) -> None:
        """Restore what was there, or lead the replacement that was made over this one past it."""
        layers = _stack(self._place)
        if self not in layers:
            return
        place = layers.index(self)
        self._upper = layers[place + 1] if place + 1 < len(layers) else None
        del layers[place]
        _pile(self._place, layers)
        if self._upper is not None:
            self._upper._lead(self._stored, self._calls)
            return
        self._found = getattr(self.holder, self.attribute)
        if self._stored is MISSING:
            delattr(self.holder, self.attribute)
        else:
            setattr(self.holder, self.attribute, self._stored)

    def put_back(self) -> None:
        """Undo `take_out`."""
        upper, self._upper = self._upper, None
        layers = _stack(self._place)
        if upper is None or upper not in layers:
            layers.append(self)
            setattr(self.holder, self.attribute, self._found)
        else:
            layers.insert(layers.index(upper), self)
            upper._lead(self._value, [self._value])
        _pile(self._place, layers)

    def _lead(self, stored: Any, calls: list[Any]) -> None:
        """Another replacement is below this one, or none. The program's own function stays."""
        if self._is_linked:
            self._stored, self._calls[:] = stored, calls
