"""Ends of a program at which Python runs no exit handlers: ``os._exit``, ``os.execv``.

Also the final traceback, which is shown as it is without recording.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from traincheck.collect.trace_writer.emitter import HIDDEN_FILE
from traincheck.handlers import give_back

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

logger = logging.getLogger(__name__)

_LEAVING = ("_exit", "abort")
# The basis of this family: execl, execvpe and so on look them up when they are called
_REPLACING = ("execv", "execve")
_OURS = f"{Path(__file__).parents[2]}{os.sep}"


class ProcessExit:
    """Replaces these functions; the originals are put back when the session stops."""

    def __init__(self, session: Recorder) -> None:
        self._session = session
        self._hooks: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Replace them. Called once."""
        for name in _LEAVING:
            self._hook(os, name, self._closing)
        for name in _REPLACING:
            self._hook(os, name, self._replacing)
        self._hook(sys, "excepthook", self._showing)

    def remove(self) -> None:
        """Restore the originals."""
        for holder, name, original, ours in self._hooks:
            if getattr(holder, name) is ours:  # else another wrapper is on top, and calls this one
                setattr(holder, name, original)

    def _hook(self, holder: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        original = getattr(holder, name)
        ours = make(original)
        self._hooks.append((holder, name, original, ours))
        setattr(holder, name, ours)

    def _closing(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def ending(*args: Any, **kwargs: Any) -> Any:
            try:
                self._session.close()
            finally:  # in any case: a child that continued would run its parent's program
                leave(*args, **kwargs)

        return ending

    def _replacing(self, replace: Callable[..., Any]) -> Callable[..., Any]:
        """If the other program cannot be run, this one continues, and so does the recording."""

        @functools.wraps(replace)
        def replacing(*args: Any, **kwargs: Any) -> Any:
            self._session.prepare_for_exec()
            return replace(*args, **kwargs)

        return replacing

    def _showing(self, show: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(
            kind: type[BaseException], value: BaseException, tb: TracebackType | None
        ) -> None:
            try:
                self._session.ending.note(kind, tb)
                tb = _without_ours(value, tb)
            except Exception as error:  # shown as it is
                give_back(error)
                logger.debug("could not remove frames of traincheck", exc_info=True)
            show(kind, value, tb)

        return excepthook


def _without_ours(error: BaseException, tb: TracebackType | None) -> TracebackType | None:
    """The traceback as without recording: frames of traincheck removed, also from its causes."""
    seen, pending = {id(error)}, [error]
    while pending:
        one = pending.pop()
        for other in (one.__cause__, one.__context__, *getattr(one, "exceptions", ())):
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                pending.append(other)
                other.__traceback__ = _user_frames(other.__traceback__)
    return _user_frames(tb)


def _user_frames(tb: TracebackType | None) -> TracebackType | None:
    first = tb
    while first is not None and _is_ours(first):
        first = first.tb_next
    entry = first
    while entry is not None:
        while entry.tb_next is not None and _is_ours(entry.tb_next):
            entry.tb_next = entry.tb_next.tb_next
        entry = entry.tb_next
    return first


def _is_ours(entry: TracebackType) -> bool:
    """Whether a frame is of a wrapper, or of code that a signal handler interrupted."""
    name = entry.tb_frame.f_code.co_filename
    return name == HIDDEN_FILE or name.startswith(_OURS)
