"""The user's source files of two runs: the lines that differ, those near a place first.

A trace holds copies of the files that ran: `traincheck.schema.observations.processes`. Comments,
blank lines and docstrings are no difference. Nothing is executed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path, PurePath
from re import compile as compiled

import xxhash

from traincheck.schema.events import MarkEvent
from traincheck.schema.files import read_regular
from traincheck.schema.layout import SOURCES
from traincheck.schema.observations.processes import Sources

_COPY = compiled(r"[0-9a-f]{16}\.py")
_MOST_BYTES = 1 << 21
_MOST_LINES = 20_000  # of a file; matching takes quadratic time
_MOST_FILES = 500
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Function:
    """A function of a source file: its dotted name, and its first and last line from 1."""

    name: str
    first: int
    last: int


class Source:
    """A source file.

    Args:
        path: as the process had it.
        text: its content.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = text.split("\n")
        self._text = text

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its syntax tree; None if it is not Python."""
        try:
            return ast.parse(self._text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and classes, the outer before the inner ones."""
        return [] if self.tree is None else list(_functions(self.tree, ""))

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """Number and text of each line that is not empty, a comment or part of a docstring."""
        dropped: set[int] = set()
        for node in ast.walk(self.tree) if self.tree is not None else ():
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                text = node.body[0]
                dropped.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return [
            (number, line.rstrip())
            for number, line in enumerate(_without_comments(self._text), 1)
            if line.strip() and number not in dropped
        ]

    def function_at(self, line: int) -> Function | None:
        """The innermost function or class around a line."""
        found = [one for one in self.functions if one.first <= line <= one.last]
        return found[-1] if found else None

    def text_of(self, name: str) -> str:
        """The code of a function, given by the end of its dotted name; "" if there is none."""
        for one in self.functions:
            if one.name == name or name.endswith(f".{one.name}"):
                lines = self.lines[one.first - 1 : one.last]
                indent = len(lines[0]) - len(lines[0].lstrip())
                return "\n".join(line[indent:] for line in lines)
        return ""


@dataclass(frozen=True, slots=True)
class Program:
    """The source files of one run.

    Attributes:
        script: path of the script. files: by path.
        is_whole: whether there is a copy of each file, as it was when the process started.
    """

    script: str = ""
    files: dict[str, Source] = field(default_factory=dict)
    is_whole: bool = True

    def at(self, place: str) -> tuple[Source, int] | None:
        """The file and the line of ``file:line``; None if there is no copy."""
        path, _, line = place.rpartition(":")
        if not path or not line.isdecimal():
            return None
        for known, source in self.files.items():
            if is_file(known, path):
                return source, int(line)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Lines that two runs have differently.

    Attributes:
        function: dotted name of the function or class around the lines; "" for the module.
        path_a, path_b: of the file; "" if it has no counterpart.
        a, b: number and text of each line in each run.
        at_a, at_b: the line of each file that they stand at.
    """

    function: str = ""
    path_a: str = ""
    path_b: str = ""
    a: tuple[tuple[int, str], ...] = ()
    b: tuple[tuple[int, str], ...] = ()
    at_a: int = 0
    at_b: int = 0

    @property
    def place(self) -> str:
        """``train.py:41``, by the lines of B; with that of A if the files have other names."""
        mine, yours = PurePath(self.path_a).name, PurePath(self.path_b).name
        if not yours:
            return f"{mine}:{self.at_a}" if self.at_a else mine
        here = f"{yours}:{self.at_b}" if self.at_b else yours
        return here if mine in ("", yours) else f"{here} ({mine}:{self.at_a})"


def program_of(directory: Path, marks: Iterable[MarkEvent]) -> Program:
    """The program of a run by its marks; empty if the run keeps no copies.

    A copy counts only if its content is the one that its name stands for.
    """
    script = ""
    files: dict[str, Source] = {}
    is_whole = True
    for mark in marks:
        if mark.text != Sources.text or not isinstance(mark.data.get("files"), dict):
            continue
        script = script or str(mark.data.get("script") or "")
        is_whole &= not mark.data.get("left_out") and not mark.data.get("changed")
        for path, name in mark.data["files"].items():
            text = _copy(directory, name) if len(files) < _MOST_FILES else None
            is_whole &= text is not None
            if text is not None:
                files[str(path)] = Source(str(path), text)
    return Program(script, files, is_whole)


def _copy(directory: Path, name: object) -> str | None:
    if not isinstance(name, str) or not _COPY.fullmatch(name):
        return None
    try:
        content = read_regular(directory / SOURCES / name, _MOST_BYTES)
        if f"{xxhash.xxh3_64_hexdigest(content)}.py" != name:
            return None
        return content.decode()
    except (OSError, ValueError):
        return None


def changes_between(a: Program, b: Program) -> list[Change]:
    """The lines of code that differ: of the scripts, then of files at one path below their folder.

    Without its script, the copies of a run are not complete, and nothing is said of missing ones.
    """
    if not (a.files and b.files):
        return []
    found: list[Change] = []
    mine, yours = _relative(a), _relative(b)
    for key, source in mine.items():
        if key not in yours:
            found.append(Change(path_a=source.path))
        elif source.code != yours[key].code:
            found += _changes(source, yours[key])
    found += [Change(path_b=source.path) for key, source in yours.items() if key not in mine]
    is_whole = a.script and b.script
    return [one for one in found if is_whole or (one.path_a and one.path_b)]


def _relative(program: Program) -> dict[str, Source]:
    folder = str(PurePath(program.script).parent) + "/" if program.script else ""
    return {
        "" if path == program.script else path.removeprefix(folder): source
        for path, source in program.files.items()
    }


def _changes(a: Source, b: Source) -> Iterator[Change]:
    if max(len(a.code), len(b.code)) > _MOST_LINES:
        return
    mine, yours = [text for _, text in a.code], [text for _, text in b.code]
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, mine, yours, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        at_a, at_b = _line(a.code, a0, a1), _line(b.code, b0, b1)
        around = b.function_at(at_b) if b1 > b0 else a.function_at(at_a)
        yield Change(
            function=around.name if around else "", path_a=a.path, path_b=b.path,
            a=tuple(a.code[a0:a1]), b=tuple(b.code[b0:b1]), at_a=at_a, at_b=at_b,
        )  # fmt: skip


def _line(code: Sequence[tuple[int, str]], start: int, end: int) -> int:
    """The line at which code stands, or would stand if there is none."""
    if start < len(code):
        return code[start][0]
    return code[-1][0] + 1 if code else end + 1


def nearest_first(
    changes: Sequence[Change], places: Sequence[str], functions: Sequence[str]
) -> list[Change]:
    """Changes in the order of their distance from what differs first.

    Args:
        changes: lines that differ.
        places: ``file:line`` of the calls up to the first difference, the last one first.
        functions: dotted names of functions that compute what differs, or their ends.
    """
    parts = (place.rpartition(":") for place in places)
    where = [(path, int(line)) for path, _, line in parts if line.isdecimal()]

    def distance(change: Change) -> tuple[int, int]:
        function = f".{change.function}"
        # One dotted name is the end of the other.
        if change.function and any(
            function.endswith(f".{name}") or f".{name}".endswith(function) for name in functions
        ):
            return 0, 0
        for rank, (path, line) in enumerate(where):
            for known, at in ((change.path_a, change.at_a), (change.path_b, change.at_b)):
                if known and is_file(known, path):
                    return 1 + min(rank, 1), abs(line - at)
        return 3, 0

    return sorted(changes, key=distance)


def is_file(known: str, path: str) -> bool:
    """Whether a path, which may be relative, is that of a known file."""
    return known == path or known.endswith(f"/{path}")


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}{child.name}"
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            yield Function(name, first, child.end_lineno or child.lineno)
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _without_comments(text: str) -> list[str]:
    """The lines of a file without comments; as they are if it is not Python."""
    lines = text.split("\n")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (SyntaxError, tokenize.TokenError):
        return text.split("\n")
    return lines
