"""The receivers of a command with their settings: from its options and the configuration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.errors import UsageError
from traincheck.receivers.base import COMMAND, RECEIVERS, Receiver, load_receiver
from traincheck.receivers.command import words_of
from traincheck.schema.findings import SEVERITIES

NOWHERE = "none"
_LEVEL, _TIMEOUT = "level", "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One receiver and its settings.

    Attributes:
        name: of the receiver.
        entry: its class, as ``module:class``.
        settings: keyword arguments of the class. A text ``$NAME`` stands for a variable of the
            environment.
        level: lowest severity of the findings that are sent one by one.
        patience_s: seconds to wait for the receiver at the end.
        takes_progress: whether it needs the present numbers of a live run.
        error: why the receiver cannot be used; empty if nothing is known against it.
    """

    name: str
    entry: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    level: str = "warning"
    patience_s: float = Receiver.patience_s
    takes_progress: bool = False
    error: str = ""


def routes(
    to: Sequence[str],
    tables: Mapping[str, Mapping[str, Any]],
    commands: Sequence[str] = (),
    *,
    path: str = "",
) -> list[Route]:
    """The receivers to use.

    Args:
        to: values of ``--to``: ``NAME`` or ``NAME=TARGET``. They replace the choice of the
            configuration, and ``none`` empties it.
        tables: the tables of the configuration, by the names of receivers.
        commands: values of ``--on-finding``.
        path: the configuration file, for messages.

    Raises:
        UsageError: a receiver or a setting is unknown, or a value is not usable.
    """
    for line in commands:
        words_of(line)
    if COMMAND in tables:
        raise UsageError(
            f"{path}: [sinks.{COMMAND}] would let a file run commands",
            fix="use --on-finding COMMAND on the command line",
        )
    said = f"{path}: " if path else ""
    configured = [_route(name, table, f"{said}[sinks.{name}] ") for name, table in tables.items()]
    chosen = [_asked(value, tables) for value in to if value != NOWHERE] if to else configured
    return [*chosen, *(_route(COMMAND, {"line": line}, "--on-finding ") for line in commands)]


def _asked(value: str, tables: Mapping[str, Mapping[str, Any]]) -> Route:
    name, _, target = value.partition("=")
    if name == COMMAND:
        raise UsageError("--to command names no command", fix="use --on-finding COMMAND")
    settings = dict(tables.get(name, {}))
    if target:
        receiver = _loaded(name)
        key = receiver.target if isinstance(receiver, type) else "target"
        if not key:
            raise UsageError(f"--to {value}: {name} has no target", fix=f"--to {name}")
        settings[key] = target
    return _route(name, settings, f"--to {name} ")


def _loaded(name: str) -> type[Receiver] | str:
    """The class of a receiver, or why it cannot be loaded.

    Raises:
        UsageError: there is no such receiver.
    """
    entry = RECEIVERS.find(name, hidden=COMMAND)
    try:
        return load_receiver(entry)
    except Exception as error:  # whatever a foreign module may raise
        return f"{type(error).__name__}: {error}"


def _route(name: str, table: Mapping[str, Any], said: str) -> Route:
    entry, receiver = RECEIVERS.find(name, hidden=COMMAND).value, _loaded(name)
    settings = dict(table)
    level = settings.pop(_LEVEL, "warning")
    if level not in SEVERITIES:
        raise UsageError(
            f"{said}has level {level!r}", fix=f"make it one of {', '.join(SEVERITIES)}"
        )
    if isinstance(receiver, str):
        return Route(name=name, entry=entry, error=receiver)
    patience_s = settings.pop(_TIMEOUT, receiver.patience_s)
    is_plain = isinstance(patience_s, int | float) and not isinstance(patience_s, bool)
    if not (is_plain and math.isfinite(patience_s) and patience_s > 0):
        raise UsageError(f"{said}has timeout {patience_s!r}", fix="make it a number of seconds")
    parameters = inspect.signature(receiver).parameters
    known = ", ".join([*parameters, _LEVEL, _TIMEOUT])
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key in settings:
        if key not in parameters and not is_open:
            raise UsageError(f"{said}has no setting {key!r}", fix=f"use one of {known}")
    missing = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD and key not in settings
    ]
    if missing:
        target = f"--to {name}={receiver.target.upper()}" if missing[0] == receiver.target else ""
        fix = target or f'add {missing[0]} = "..." to its table'
        raise UsageError(f"{said}lacks {missing[0]}", fix=fix)
    return Route(
        name=name,
        entry=entry,
        settings=settings,
        level=level,
        patience_s=patience_s,
        takes_progress=receiver.takes_progress,
    )
