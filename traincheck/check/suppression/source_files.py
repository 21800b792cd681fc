"""Source files that places of a trace name, and the calls and comments in them.

A trace may come from anywhere, so it does not decide alone which file is opened. A file is read if
it is a regular Python file below a trusted folder: the checkout of the current folder, of the
trace, or of a script that the user named. Nothing is executed.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traincheck.schema.files import read_regular
from traincheck.schema.places import program_line
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


_COMMENT = re.compile(r"#\s*traincheck:\s*ignore(?:\[(?P<codes>[^\]]*)\])?(?P<reason>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment. codes: those that it suppresses; empty for all."""

    codes: tuple[str, ...]
    reason: str


class SourceComments:
    """The comments of source files, each read once.

    Args:
        sources: reads the files that may be read.
    """

    def __init__(self, sources: SourceFiles) -> None:
        self._sources = sources
        self._files: dict[str, dict[int, Comment]] = {}

    def at(self, place: str) -> Comment | None:
        """The comment that applies to a place, ``file:line``."""
        found = split_place(place)
        if found is None:
            return None
        path, line = found
        if path not in self._files:
            self._files[path] = comments_of(self._sources.read(path) or "")
        return self._files[path].get(line)


def comments_of(source: str) -> dict[int, Comment]:
    """Line -> the comment that applies to it."""
    written = dict(_written(source))
    if not written:
        return {}
    found: dict[int, Comment] = {}
    # Widest first: the innermost of nested statements wins.
    for first, last in sorted(_spans(source), key=lambda span: span[0] - span[1]):
        for line in range(first, last + 1):
            if line in written:
                found.update(dict.fromkeys(range(first, last + 1), written[line]))
    return {**found, **written}


def _written(source: str) -> Iterator[tuple[int, Comment]]:
    """Each such comment with its line."""
    if "traincheck:" not in source:
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match:
                listed = match["codes"]
                codes = tuple(code.strip() for code in (listed or "").split(",") if code.strip())
                if listed is not None and not codes:
                    codes = ("none",)  # ignore[] lists no code, and must not mean all codes
                yield token.start[0], Comment(codes=codes, reason=match["reason"].strip(" \t:-"))
    # Keep the comments found so far. Python 3.12 and later raise SystemError on null bytes.
    except (tokenize.TokenError, SyntaxError, ValueError, SystemError):
        return


def _spans(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each statement; only of the head where it has a body."""
    try:
        tree = ast.parse(source)
    except UNPARSABLE:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        if not hasattr(node, "body") and not hasattr(node, "cases"):
            yield node.lineno, node.end_lineno or node.lineno
            continue
        head = [child for child in ast.iter_child_nodes(node) if isinstance(child, _HEADS)]
        ends = [getattr(part, "end_lineno", None) or node.lineno for part in head]
        ends += [item.context_expr.end_lineno or node.lineno for item in getattr(node, "items", ())]
        yield node.lineno, max(ends, default=node.lineno)


_HEADS = (ast.expr, ast.arguments)
