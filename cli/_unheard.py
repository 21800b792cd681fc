"""Messages to people who may not be there: a closed pipe or a full disk behind stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


def give_up(stream: TextIO) -> None:
    """Python flushes once more at exit; that must not fail loudly, nor change the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def even_unheard() -> Iterator[None]:
    """Say something on stderr; where that fails, the exit status stays what it is."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):  # a stream without a file
            give_up(sys.stderr)
