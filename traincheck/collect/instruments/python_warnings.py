"""``warnings.warn`` calls, shown or not: many bugs print warnings that nobody reads."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from traincheck.collect import masking
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE, hidden

_MAX_TEXT = 500
_MAX_READ = 4000
_MAX_WARNINGS = 1000  # of a run; a warning in a loop must not fill the disk


class PythonWarnings(Instrument):
    """Records a warning before Python decides whether to show it; the output does not change."""

    name = "warnings"
    is_seen_by_transforms = True  # TorchScript compiles warnings.warn

    def install(self) -> None:
        self._count = 0
        self._depth = 0  # of recorded calls of warn()
        self.replace(warnings, "warn", self._wrap)
        if hasattr(warnings, "_showwarnmsg"):
            self.replace(warnings, "_showwarnmsg", self._wrap_show)

    def _wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        def warn(
            message: Any,
            category: Any = None,
            stacklevel: int = 1,
            source: Any = None,
            **kwargs: Any,
        ) -> None:
            level = self._warned(message, category, sys._getframe(1), stacklevel)
            self._depth += 1
            try:
                # The wrapper's frame is between; being hidden, it makes the interpreter count each
                # frame.
                original(message, category, level, source, **kwargs)
            finally:
                self._depth -= 1

        return hidden(warn)

    def _warned(self, message: Any, category: Any, frame: FrameType, stacklevel: int) -> int:
        """Note a warning. Returns its stack level with the frame of the wrapper between."""
        if not isinstance(stacklevel, int):
            return stacklevel  # the original reports the error
        try:
            target, distance = _target(frame, stacklevel)
            kind = type(message) if isinstance(message, Warning) else category or UserWarning
            at = None if target is None else f"{target.f_code.co_filename}:{target.f_lineno}"
            self._note(message, kind, at)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._warned, error)
            return stacklevel + 1
        return distance + 1

    def _wrap_show(self, original: Callable[..., None]) -> Callable[..., None]:
        """C++ code warns without warn(): only the shown warnings are recorded."""

        def _showwarnmsg(msg: Any) -> None:
            if not self._depth:
                self._note(msg.message, msg.category, f"{msg.filename}:{msg.lineno}")
            original(msg)

        return hidden(_showwarnmsg)

    def _note(self, message: Any, kind: type[Warning], at: str | None) -> None:
        session = self.session
        em = session.local.em
        self._count += 1
        if not session.recording.on or self._count > _MAX_WARNINGS or (em is not None and em.busy):
            return
        try:
            em = em or session.emitter()
            em.event(
                "warning",
                {"category": kind.__name__, "text": _text(message), "where": at},
            )
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self._note, error)


def _text(message: Any) -> str:
    return masking.message(str(message)[:_MAX_READ])[:_MAX_TEXT]


def _is_internal(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name


def _target(frame: FrameType, stacklevel: int) -> tuple[FrameType | None, int]:
    """The frame that a warning of this ``stacklevel`` names, and its distance with the wrapper."""
    distance = 1
    current: FrameType | None = frame
    while current is not None and current.f_code.co_filename == HIDDEN_FILE:
        current, distance = current.f_back, distance + 1
    for _ in range(stacklevel - 1):
        if current is None:
            break
        current, distance = current.f_back, distance + 1
        while current is not None and _is_internal(current):
            current, distance = current.f_back, distance + 1
    return current, distance
