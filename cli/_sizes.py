"""Sizes on the command line: 100MB, 2 GB, 0."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]*)")
_LEAST = 10**6  # of a trace: less would not hold the steps that are being checked


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A number of bytes, with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        found = _SIZE.fullmatch(str(value).strip().upper())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is not a size; use a value such as 100MB, 2GB or 0", param, ctx)
        size = int(float(found[1]) * _UNITS[found[2]])
        if 0 < size < _LEAST:
            self.fail(f"{value!r} is too small; the minimum is {size_text(_LEAST)}", param, ctx)
        return size


def size_text(size: int) -> str:
    """``100 MB``."""
    unit = next((u for u in ("TB", "GB", "MB", "KB") if size >= _UNITS[u]), "B")
    return f"{size / _UNITS[unit]:g} {unit}"
