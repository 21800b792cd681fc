"""Functions of torch that several parts of a recording listen to. Each is replaced once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.collect.moments.replaced import Replaced
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import Threads, quietly

Args = tuple[Any, ...]
Named = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Around:
    """What listens to calls of a function. Each part is optional; what fails is only counted.

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

    __slots__ = ("_is_inside", "_session")

    def __init__(self, session: Threads, place: tuple[Any, str] | None = None) -> None:
        super().__init__(place)
        self._session = session
        self._is_inside = False

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls the original, and all who listen."""
        session, recording, local = self._session, self._session.recording, self._session.local

        def call(*args: Any, **kwargs: Any) -> Any:
            listeners, is_inside = self.all, self._is_inside
            is_recorded = (
                recording.on and not is_inside and not (local.em or session.emitter()).busy
            )
            if not is_recorded:
                listeners = tuple(one for one in listeners if one.always)
                if not listeners:
                    return original(*args, **kwargs)
            notes: list[tuple[Around, Any]] = []
            failed: BaseException | None = None
            try:
                for one in reversed(listeners):
                    note = one.before and quietly(session, one.before, args, kwargs)
                    notes.append((one, note))
                self._is_inside = is_inside or is_recorded
                result = original(*args, **kwargs)
            except BaseException as error:
                failed = error
                raise
            finally:
                self._is_inside = is_inside
                for one, note in reversed(notes):
                    if one.left is not None:
                        quietly(session, one.left, note, failed)
            for one, note in reversed(notes):
                if one.after is not None:
                    quietly(session, one.after, note, args, kwargs, result)
            return result

        return hidden(call)
