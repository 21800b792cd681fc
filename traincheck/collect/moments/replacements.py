"""Attributes that instruments replace. Several may replace the same one; each can be taken out.

A function of torch has one replacement. One of the program may have two: the step of an optimizer
that it defines in a package named with ``--instrument``. A replacement calls what was there before.
If another instrument has put that there, it is called through a link, which leads further down once
the other one is taken out.
"""

from __future__ import annotations

import functools
import pkgutil
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from traincheck.collect.listeners import Listeners
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Threads
from traincheck.collect.trace_writer.recording_state import is_traced

_F = TypeVar("_F")

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


def is_replaced(holder: Any, attribute: str) -> bool:
    """Whether a function is replaced by code of ours."""
    return bool(_stack((id(holder), attribute)))


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

    def is_covered(self) -> bool:
        """Whether the program has put its own function over it."""
        return vars(self.holder).get(self.attribute) is not self._value

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


def replaced(
    owner: object,
    holder: Any,
    attribute: str,
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
    session: Threads | None = None,
    *,
    is_rare: bool = False,
    skip_inner: bool = False,
    is_of_program: bool = False,
) -> Callable[[], Any]:
    """Set ``holder.attribute`` to ``make(original)``, under the original's name and docs.

    Args:
        owner: as of `Replacement`.
        holder: where it is.
        attribute: its name there.
        make: gets the function to call.
        session: if given, a replaced function of C only calls the original while nothing is
        recorded.
        is_rare: it also does so in steps without calls within models.
        skip_inner: it also does so while a recorded function runs.
        is_of_program: the holder may be freed while its owner is there.

    Returns:
        A function that gives the replacement, as `Replacement.put_in` does.
    """
    original = getattr(holder, attribute)
    layer = Replacement(owner, holder, attribute, vars(holder).get(attribute, MISSING))
    replacement = make(layer.below(original))
    if not isinstance(holder, type) and isinstance(original, types.BuiltinFunctionType):
        place = f"{holder.__name__}:{attribute}"
        replacement = _unbound(
            replacement, original, place, session, is_rare=is_rare, skip_inner=skip_inner
        )
    else:
        _name(functools.update_wrapper(replacement, original), original, holder, attribute)
    return layer.put_in(replacement, is_of_program=is_of_program)


def _name(
    replacement: Callable[..., Any], original: Callable[..., Any], holder: Any, attribute: str
) -> None:
    """Give a function the names of the original, or those of its place: pickling goes by them.

    They must lead to the replacement where those of the original lead elsewhere.
    """
    if not hasattr(original, "__annotations__"):
        replacement.__annotations__ = {}
    if isinstance(holder, type):
        if getattr(original, "__module__", None) is None:  # a method of C
            replacement.__module__ = holder.__module__
            replacement.__qualname__ = f"{holder.__qualname__}.{attribute}"
    elif "<locals>" not in original.__qualname__:  # else it cannot be pickled
        replacement.__module__, replacement.__qualname__ = holder.__name__, attribute


def _unbound(
    function: Callable[..., Any],
    original: Callable[..., Any],
    place: str,
    session: Threads | None,
    *,
    is_rare: bool,
    skip_inner: bool,
) -> Any:
    """A callable that does not become a method in a class, like functions of C.

    So ``act = torch.relu`` in a class, or in an Enum, behaves as without traincheck. Who inspects
    it sees the original, also by ``isinstance``. It is pickled by its place, where it is found
    while it is recorded, and the original later. With ``session``, an unrecorded call costs one
    frame instead of two: see `Instrument.replace`.
    """
    recording = session.recording if session is not None else None
    local = session.local if session is not None and skip_inner else None

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not is_traced() and recording is not None:
            if not recording.on or (is_rare and not recording.inner_calls):
                return original(*args, **kwargs) if kwargs else original(*args)
            if local is not None:
                em = local.em
                if em is not None and em.inner is not None:
                    return original(*args, **kwargs)
        return function(*args, **kwargs)

    methods: dict[str, Any] = {
        "__slots__": ("__weakref__",),
        "__module__": original.__module__,
        "__doc__": original.__doc__,
        "__wrapped__": original,
        "__class__": property(lambda self: type(original)),
        "__getattr__": lambda self, name: getattr(original, name),
        "__call__": hidden(__call__),
        # Tables of overrides (`__torch_function__`) are indexed by the object that torch passes
        "__eq__": lambda self, other: other is self or other is original,
        "__hash__": lambda self: hash(original),
        "__reduce_ex__": lambda self, protocol: (pkgutil.resolve_name, (place,)),
        "__copy__": lambda self: self,
        "__deepcopy__": lambda self, memo: self,
        "__repr__": lambda self: repr(original),
    }
    return type(type(original).__name__, (), methods)()


class Replaced(Listeners[_F]):
    """The listeners of one function, which is replaced while there is one.

    Args:
        place: the holder of the function and its name there; None if its owner replaces it.
    """

    __slots__ = ("_layer", "_place")

    def __init__(self, place: tuple[Any, str] | None = None) -> None:
        super().__init__()
        self._place = place
        self._layer: Callable[[], Any] | None = None

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls the original, and all who listen."""
        raise AssertionError(f"{type(self).__name__} does not say how it calls {original}")

    def add(self, action: _F) -> None:
        super().add(action)
        if self._layer is None and self._place is not None:
            self._layer = replaced(self, *self._place, self.wrapped)

    def leave(self, action: _F) -> None:
        super().leave(action)
        layer = self._layer
        if layer is not None and not self.all:
            self._layer = None
            layer().take_out()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the original temporarily, for code that inspects functions."""
        layer = self._layer
        if layer is not None:
            layer().take_out()
        try:
            yield
        finally:
            if layer is not None and self._layer is layer:  # else the last listener has left
                layer().put_back()
