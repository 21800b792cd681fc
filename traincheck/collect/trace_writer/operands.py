"""The names that a program has for what it computes with. Read from its source, not from frames."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Sequence
from types import FrameType

from traincheck.handlers import give_back
from traincheck.schema.files import read_regular

_LONGEST = 200  # characters of an expression


def second_operand(frame: FrameType | None) -> str:
    """The name of the second operand of the operation that runs in ``frame``.

    ``lengths`` of ``total / lengths.unsqueeze(1)``, ``self.size`` of ``total / self.size``. Empty
    if it has none, if the operation takes several lines, or before Python 3.11.
    """
    positions = getattr(frame.f_code, "co_positions", None) if frame is not None else None
    if frame is None or positions is None:
        return ""
    line, end, start, stop = next(itertools.islice(positions(), frame.f_lasti // 2, None))
    if line is None or line != end or start is None or stop is None or stop - start > _LONGEST:
        return ""
    # Places are counted in bytes
    lines = _lines(frame.f_code.co_filename)
    try:
        text = lines[line - 1][start:stop].decode()
        found = ast.parse(text.strip(), mode="eval").body
    except (IndexError, ValueError, SyntaxError) as error:
        give_back(error)  # the file was changed since
        return ""
    operand: ast.expr | None = None
    if isinstance(found, ast.BinOp):
        operand = found.right
    elif isinstance(found, ast.Call) and found.args:
        operand = found.args[-1]
    return _name(operand)


@functools.lru_cache(maxsize=8)
def _lines(path: str) -> Sequence[bytes]:
    """The lines of a file; none of one that cannot be read, as of a notebook."""
    try:
        return read_regular(path).splitlines()
    except OSError as error:
        give_back(error)
        return ()


def _name(found: ast.expr | None) -> str:
    """The name that an expression begins with; of a method, that of its object."""
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
        return _name(found.func.value)
    if isinstance(found, ast.Subscript):
        return _name(found.value)
    if isinstance(found, ast.Attribute):
        before = _name(found.value)
        return f"{before}.{found.attr}" if before else ""
    return found.id if isinstance(found, ast.Name) else ""
