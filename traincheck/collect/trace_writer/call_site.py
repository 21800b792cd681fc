"""The line of the user's program that makes a call. Frames are read, never kept."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

import orjson
import torch

from traincheck.collect.tensors.summarize import dumps
from traincheck.handlers import give_back

_TORCH_DIR = str(Path(torch.__file__).parent)
_OWN_DIR = str(Path(__file__).parents[1])
# Libraries whose objects wrap those of torch and forward each call.
_PASSING_ON = re.compile(
    r"[\\/](?:site|dist)-packages[\\/](?:accelerate|lightning_fabric|lightning[\\/]fabric)[\\/]"
)
_CELL = "<ipython-input-"  # in a terminal; cells of a notebook have file names
_MOST_CODES = 4096  # generated functions and lines must not grow the training process

# Code by id, and its serialized lines by instruction; None if it is not the user's. The code is
# kept alive, so that no other code gets its id. The key is not the code itself, which hashes all
# its names and constants each time, nor the line, whose look-up in a table takes ten times as long.
_Known: TypeAlias = tuple[CodeType, "dict[int, bytes] | None"]
_known: dict[int, _Known] = {}


def where() -> str | None:
    """``file:line`` of the nearest frame outside torch, its wrappers and traincheck."""
    return outside(sys._getframe(2))


def outside(frame: FrameType | None) -> str | None:
    """`where`, from ``frame`` outwards."""
    text = place(frame)
    return None if text == b"null" else orjson.loads(text)


def place(frame: FrameType | None) -> bytes:
    """`where`, serialized, from ``frame`` outwards."""
    while frame is not None:
        code = frame.f_code
        _, lines = _known.get(id(code)) or _meet(code)
        if lines is not None:
            found = lines.get(frame.f_lasti)
            if found is None:
                text = dumps(f"{_label(code.co_filename)}:{frame.f_lineno}")
                found = lines[frame.f_lasti] = text
            return found
        frame = frame.f_back
    return b"null"


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
    known = _known[id(code)] = code, {} if is_users else None
    return known
