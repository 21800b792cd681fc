"""Which line of the user's program makes a call.

The frames are read, never kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import Any

import orjson
import torch

_TORCH_DIR = str(Path(torch.__file__).parent)
_OWN_DIR = str(Path(__file__).parent)


class _UserCode(dict[CodeType, bool]):
    """Whether code is the user's. Looking at each file name again would take 1 us a frame."""

    def __missing__(self, code: CodeType) -> bool:
        found = self[code] = not code.co_filename.startswith((_TORCH_DIR, _OWN_DIR, "<"))
        return found


_user_code = _UserCode()


def where() -> str | None:
    """``file:line`` of the nearest frame outside torch and traincheck."""
    text = place(sys._getframe(2))
    return None if text == b"null" else orjson.loads(text)


def place(frame: Any) -> bytes:
    """`where`, serialized, from ``frame`` outwards."""
    while frame is not None:
        code = frame.f_code
        if _user_code[code]:
            key = (code, frame.f_lineno)
            found = _places.get(key)
            if found is None:
                if len(_places) >= _MOST_PLACES:
                    _places.clear()
                found = _places[key] = orjson.dumps(f"{code.co_filename}:{frame.f_lineno}")
            return found
        frame = frame.f_back
    return b"null"


_places: dict[tuple[CodeType, int], bytes] = {}
_MOST_PLACES = 4096  # lines made on the fly must not grow the training process
