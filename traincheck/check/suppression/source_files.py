"""Source files of the program of a run, which places in its trace name, and the calls in them.

A trace may come from anywhere, so it does not decide alone which file is opened. A file is read if
it is a regular Python file below a trusted folder: the checkout of the current folder, of the
trace, or of a script that the user named. Nothing is executed.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path

from traincheck.schema.places import program_line
from traincheck.schema.reading import read_regular
from traincheck.schema.torch_api import LOSSES

MAX_BYTES = 2_000_000
_MAX_DIGITS = 9
_SUFFIX = ".py"
# Raised by `ast.parse` on text that is not Python, or is nested or chained too deeply.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_MARKERS = (".git", "traincheck.toml", "pyproject.toml")  # files that mark a checkout


class SourceFiles:
    """The source files of a run that may be read.

    Args:
        root: returns the folder that relative paths start from, as recorded in the trace.
        trusted: folders below which files may be read; never values of a trace.

    Attributes:
        trusted: these folders.
        refused: paths of the run's own files that lie outside of these folders.
    """

    def __init__(self, root: Callable[[], str] = str, trusted: Iterable[Path] = ()) -> None:
        self._root = root
        self.trusted = tuple(trusted)
        self.refused: set[str] = set()

    def path(self, name: str) -> Path | None:
        """The real path of a file that may be read; None for any other."""
        try:
            found = Path(os.path.realpath(Path(self._root()) / name, strict=True))
        except (OSError, ValueError):
            return None
        if found.suffix != _SUFFIX:
            return None
        if any(found.is_relative_to(folder) for folder in self.trusted):
            return found
        if not Path(name).is_absolute():  # files of packages are not the user's
            self.refused.add(name)
        return None

    def read(self, name: str) -> str | None:
        """The source; None if it may not or cannot be read."""
        found = self.path(name)
        if found is None:
            return None
        try:
            # Decode like Python: with the declared encoding, and line feeds only.
            content = read_regular(found, MAX_BYTES)
            try:
                encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            except SyntaxError:
                encoding = "utf-8"
            return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="replace").read()
        except (OSError, ValueError):
            return None

    def notes(self) -> list[str]:
        """A sentence on files that were not read; none if all were."""
        if not self.refused:
            return []
        first = min(self.refused)
        return [
            f"the source {first!r} was not read, also not for comments: it is outside of the "
            "current folder and the checkout of the trace; run traincheck in the program's folder"
        ]


def trusted_folders(trace: str | Path | None = None, script: str | None = None) -> tuple[Path, ...]:
    """Folders below which source may be read: checkouts of the current folder, trace and script.

    Args:
        trace: the run directory that a user gave.
        script: the script that a user gave to be run; without a checkout, its own folder counts.
    """
    found: dict[Path, None] = {}
    for start in (os.environ.get("GITHUB_WORKSPACE"), os.curdir):
        if start:
            folder = _real(start)
            found[_checkout(folder) or folder] = None
    own = _real(script).parent if script else None
    around = [_checkout(_real(trace)) if trace is not None else None]
    around += [(_checkout(own) or own) if own is not None else None]
    found.update((folder, None) for folder in around if folder is not None)
    return tuple(found)


def split_place(place: str) -> tuple[str, int] | None:
    """Path and line of ``file:line``, that of the program; None for any other text."""
    path, _, line = program_line(place).rpartition(":")
    if not path or not (line.isascii() and line.isdecimal()) or len(line) > _MAX_DIGITS:
        return None
    return path, int(line)


def _real(path: str | Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):  # no current folder, or no name of a file
        return Path(os.devnull)


def _checkout(folder: Path) -> Path | None:
    """The nearest folder upward that looks like a checkout."""
    for candidate in (folder, *folder.parents):
        if any(os.path.lexists(candidate / name) for name in _MARKERS):
            return candidate
    return None


# It is used for calls whose source line is not in the trace.
def program_in(command: Iterable[str]) -> str:
    """The script among the words of a command; empty where there is none."""
    return next((word for word in command if word.endswith(".py")), "")


def lines_calling(api: str, source: str | None) -> set[int]:
    """Lines of ``source`` that call an API; none if the source is missing or cannot be parsed."""
    if "." not in api or not source:
        return set()
    name = api.rpartition(".")[2]
    loss = LOSSES.get(name)
    names = {name} if loss is None else {name, loss.module}  # programs use either
    try:
        tree = ast.parse(source)
    except UNPARSABLE:
        return set()
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        func.end_lineno or func.lineno
        for func in calls
        if (isinstance(func, ast.Name) and func.id in names)
        or (isinstance(func, ast.Attribute) and func.attr in names)
    }
