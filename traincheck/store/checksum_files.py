"""Write a file of a report as a whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from traincheck.errors import OutputError


def save_text(path: Path, text: str) -> None:
    """Write a file, so that a reader never finds a part of it. Makes its folder.

    Raises:
        OutputError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror}",
            fix="name a writable folder, on a disk with free space",
        ) from error
