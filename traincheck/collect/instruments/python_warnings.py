"""Warnings of Python, shown or not, and of the loggers of training libraries.

Many bugs print warnings that nobody reads.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from traincheck.collect import masking
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE, hidden

_PACKAGES = "site-packages"
_STANDARD = str(Path(os.__file__).parent)
_OURS = str(Path(__file__).parents[2])
_MAX_TEXT = 500
_MAX_READ = 4000
# Loggers of libraries whose warnings may mean a fault
_LIBRARIES = frozenset(
    {
        "torch", "transformers", "accelerate", "peft", "torchmetrics", "lightning",
        "lightning_fabric", "pytorch_lightning", "diffusers", "datasets", "timm", "trl",
    }
)  # fmt: skip
_MAX_LOGGED = 200  # different messages of loggers
_MAX_WARNINGS = 1000  # of a run; a warning in a loop must not fill the disk


class PythonWarnings(Instrument):
    """Records a warning before Python decides whether to show it; the output does not change."""

    name = "warnings"
    is_seen_by_transforms = True  # TorchScript compiles warnings.warn

    def install(self) -> None:
        self._count = 0
        self._depth = 0  # of recorded calls of warn()
        self._logged: set[tuple[str, int]] = set()
        self.replace(warnings, "warn", self._wrap)
        if hasattr(warnings, "_showwarnmsg"):
            self.replace(warnings, "_showwarnmsg", self._wrap_show)
        # Below the functions that look for the line of the caller: no frame of ours is between
        self.replace(logging.Logger, "handle", self._wrap_handle)

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

    def _wrap_handle(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def handle(logger: logging.Logger, record: logging.LogRecord) -> Any:
            try:
                if record.levelno >= logging.WARNING:
                    self._note_log(record)
            except Exception as error:  # training must go on whatever we got wrong
                self.session.fault(self._note_log, error)
            return original(logger, record)

        return hidden(handle)

    def _note_log(self, record: logging.LogRecord) -> None:
        """Note a record of a library, once for each line."""
        key = record.pathname, record.lineno
        if record.name.partition(".")[0] not in _LIBRARIES or key in self._logged:
            return
        if len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(key)
        at = f"{record.pathname}:{record.lineno}"
        self._write(record.levelname, record.getMessage(), at, record.name)

    def _note(self, message: Any, kind: type[Warning], at: str | None) -> None:
        try:
            self._write(kind.__name__, message, at)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._note, error)

    def _write(self, category: str, message: Any, at: str | None, logger: str = "") -> None:
        session = self.session
        em = session.local.em
        self._count += 1
        if not session.recording.on or self._count > _MAX_WARNINGS or (em is not None and em.busy):
            return
        em = em or session.emitter()
        fields = {"category": category, "text": _text(message), "where": at}
        if logger:
            fields["logger"] = logger
        if at is not None and _PACKAGES in at:
            fields["caller"] = _caller(sys._getframe(1))
        em.event("warning", fields)


def _text(message: Any) -> str:
    return masking.message(str(message)[:_MAX_READ])[:_MAX_TEXT]


def _caller(frame: FrameType | None) -> str | None:
    """``file:line`` of the nearest code that is in no installed package."""
    while frame is not None:
        name = frame.f_code.co_filename
        is_program = _PACKAGES not in name and not name.startswith(("<", _OURS, _STANDARD))
        if is_program and name != HIDDEN_FILE:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


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
