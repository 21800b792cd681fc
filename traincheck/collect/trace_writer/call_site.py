"""The line of the user's program that makes a call. Frames are read, never kept."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

import orjson
import torch

from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.trace_writer.operands import second_operand
from traincheck.handlers import give_back
from traincheck.schema.places import called_from, is_installed

_TORCH_DIR = str(Path(torch.__file__).parent)
_OWN_DIR = str(Path(__file__).parents[1])
# Libraries whose objects wrap those of torch and forward each call.
_PASSING_ON = re.compile(
    r"[\\/](?:site|dist)-packages[\\/](?:accelerate|lightning_fabric|lightning[\\/]fabric)[\\/]"
)
# Frames that are no line of a program: the standard library, and scripts made by pip
_BESIDE = (sysconfig.get_path("stdlib"), sysconfig.get_path("scripts"))
_CELL = "<ipython-input-"  # in a terminal; cells of a notebook have file names
_MOST_CODES = 4096  # generated functions and lines must not grow the training process

# Code by id, its serialized lines by instruction (None if it is torch or ours), and whether it is
# part of the program, not of a package. The code is kept alive, so that no other code gets its id.
# The key is not the code itself, which hashes all its names and constants each time, nor the line,
# whose look-up in a table takes ten times as long. In a package, the instruction of the program
# that led there belongs to the key.
_Key: TypeAlias = "int | tuple[int, int, int]"
_Known: TypeAlias = tuple[CodeType, "dict[_Key, bytes] | None", bool]
_known: dict[int, _Known] = {}


def where() -> str | None:
    """``file:line`` of the nearest frame outside torch, its wrappers and traincheck.

    If it is in a package, that of the program follows: ``package.py:40 from train.py:12``.
    """
    return outside(sys._getframe(2))


def where_program(forwarding: tuple[str, ...]) -> str | None:
    """The line of the program that makes a call; None if torch or a package makes it.

    Args:
        forwarding: how names of modules of torch begin that call it for the program.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        _, lines, is_program = _known.get(id(frame.f_code)) or _meet(frame.f_code)
        if is_program:
            return str(orjson.loads(place(frame)))
        if lines is not None:
            return None
        module = frame.f_globals.get("__name__", "")
        if module.startswith("torch.") and not module.startswith(forwarding):
            return None
        frame = frame.f_back
    return None


def operand() -> str:
    """The name of the second operand of the operation that the nearest line of a program runs."""
    return second_operand(_program_frame(sys._getframe(2)))


def outside(frame: FrameType | None) -> str | None:
    """`where`, from ``frame`` outwards."""
    text = place(frame)
    return None if text == b"null" else orjson.loads(text)


def place(frame: FrameType | None) -> bytes:
    """`where`, serialized, from ``frame`` outwards."""
    while frame is not None:
        code = frame.f_code
        _, lines, is_program = _known.get(id(code)) or _meet(code)
        if lines is not None:
            key: _Key = frame.f_lasti
            caller = None if is_program else _program_frame(frame.f_back)
            if caller is not None:
                key = (frame.f_lasti, id(caller.f_code), caller.f_lasti)
            found = lines.get(key)
            if found is None:
                text = _line(frame)
                text = text if caller is None else called_from(text, _line(caller))
                found = lines[key] = dumps(text)
            return found
        frame = frame.f_back
    return b"null"


def _program_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the program itself."""
    while frame is not None:
        code = frame.f_code
        if (_known.get(id(code)) or _meet(code))[2]:
            return frame
        frame = frame.f_back
    return None


def _line(frame: FrameType) -> str:
    return f"{_label(frame.f_code.co_filename)}:{frame.f_lineno}"


def _label(name: str) -> str:
    """The name of a file; for a notebook cell, whose file is temporary, ``Cell In[3]``."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        return " ".join(shell.compile.format_code_name(name) or (name,))
    except (KeyError, AttributeError) as error:
        give_back(error)  # not a notebook, or an IPython that does not number its cells
        return name


def _meet(code: CodeType) -> _Known:
    """Register code that was not seen before: whether it is the user's."""
    if len(_known) >= _MOST_CODES:
        _known.clear()
    name = code.co_filename
    is_made = name.startswith("<") and not name.startswith(_CELL)
    is_users = not (is_made or name.startswith((_TORCH_DIR, _OWN_DIR)) or _PASSING_ON.search(name))
    is_program = is_users and not (is_installed(name) or name.startswith(_BESIDE))
    known = _known[id(code)] = code, {} if is_users else None, is_program
    return known
