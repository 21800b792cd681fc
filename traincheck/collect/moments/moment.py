"""Functions of torch that several parts of a recording listen to. Each is replaced once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.collect.moments.replacements import Replaced
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Threads, quietly

Args = tuple[Any, ...]
Named = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Around:
    """A listener to calls of a function. Each part is optional; what fails is only counted.

    Attributes:
        before: gets the arguments. What it returns is the note of this call, for the others.
        after: gets note, arguments and result.
        left: gets the note when the call ends, before any `after`, and the exception if it failed.
        always: also calls that are not recorded, made by code of ours, or within another call.
    """

    before: Callable[[Args, Named], Any] | None = None
    after: Callable[[Any, Args, Named, Any], None] | None = None
    left: Callable[[Any, BaseException | None], None] | None = None
    always: bool = False


class Moment(Replaced[Around]):
    """The calls of one function. It is replaced while somebody listens.

    Who came last is the outermost: its `before` is called first, and its `after` last.

    Args:
        session: the recording.
        place: as of `Replaced`.
    """

    __slots__ = ("_always", "_is_inside", "_session")

    def __init__(self, session: Threads, place: tuple[Any, str] | None = None) -> None:
        super().__init__(place)
        self._session = session
        self._is_inside = False
        self._always: tuple[Around, ...] = ()

    def add(self, action: Around) -> None:
        super().add(action)
        self._always = tuple(one for one in self.all if one.always)

    def leave(self, action: Around) -> None:
        super().leave(action)
        self._always = tuple(one for one in self.all if one.always)

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session, recording, local = self._session, self._session.recording, self._session.local
        enter, finish, end = self._enter, self._finish, self._end

        def call(*args: Any, **kwargs: Any) -> Any:
            is_inside, em = self._is_inside, local.em
            if em is None and recording.on and len(self._always) < len(self.all):
                em = session.emitter()  # not for those that act always: a rank may not be known yet
            is_recorded = recording.on and not is_inside and not (em is not None and em.busy)
            listeners = self.all if is_recorded else self._always
            if not listeners:
                return original(*args, **kwargs)
            notes: list[tuple[Around, Any]] = []  # of those who were told that it begins
            try:
                quietly(session, enter, listeners, notes, args, kwargs)
                if is_recorded:
                    self._is_inside = True
                result = original(*args, **kwargs)
            except BaseException as error:
                if is_recorded:
                    self._is_inside = False
                quietly(session, end, notes, error)
                raise
            if is_recorded:  # else another thread is inside, and may have left since
                self._is_inside = False
            quietly(session, finish, notes, args, kwargs, result)
            return result

        return hidden(call)

    def _enter(
        self, listeners: tuple[Around, ...], notes: list[tuple[Around, Any]], args: Args, kw: Named
    ) -> None:
        for one in reversed(listeners):
            note = None
            if one.before is not None:
                try:
                    note = one.before(args, kw)
                except Exception as error:  # training must go on whatever we got wrong
                    self._session.fault(one.before, error)
            notes.append((one, note))

    def _finish(
        self, notes: list[tuple[Around, Any]], args: Args, kwargs: Named, result: Any
    ) -> None:
        self._end(notes, None)
        for one, note in reversed(notes):
            if one.after is not None:
                try:
                    one.after(note, args, kwargs, result)
                except Exception as error:  # training must go on whatever we got wrong
                    self._session.fault(one.after, error)

    def _end(self, notes: list[tuple[Around, Any]], failed: BaseException | None) -> None:
        """The call has ended."""
        for one, note in reversed(notes):
            if one.left is not None:
                try:
                    one.left(note, failed)
                except Exception as error:  # training must go on whatever we got wrong
                    self._session.fault(one.left, error)
