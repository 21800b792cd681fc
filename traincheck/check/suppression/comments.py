"""Comments ``# traincheck: ignore[TC201] reason`` in the source of a run.

A comment applies to every line of its statement; on a loop or a block, to the lines of its head. A
file that no longer exists has no comments.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from traincheck.check.suppression.source_files import UNPARSABLE, SourceFiles, split_place

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
                yield token.start[0], _comment(match)
    # Keep the comments found so far. Python 3.12 and later raise SystemError on null bytes.
    except (tokenize.TokenError, SyntaxError, ValueError, SystemError):
        return


def _comment(match: re.Match[str]) -> Comment:
    listed = match["codes"]
    codes = tuple(code.strip() for code in (listed or "").split(",") if code.strip())
    if listed is not None and not codes:
        codes = ("none",)  # ignore[] lists no code, and must not mean all codes
    return Comment(codes=codes, reason=match["reason"].strip(" \t:-"))


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
