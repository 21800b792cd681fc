"""Placeholders in a trace for masked texts. Imports nothing: training processes use it."""

from __future__ import annotations

import re

MASK = "<masked>"  # replaces a value under the name of a secret
_HIDDEN = re.compile(r"<text (\d{1,18}) [0-9a-f]+>\Z")


def hidden_text(length: int, digest: str) -> str:
    """The placeholder of a masked text: its length and fingerprint."""
    return f"<text {length} {digest}>"


def text_length(value: str) -> int:
    """The number of characters of a text, also of a masked one."""
    hidden = _HIDDEN.match(value)
    return int(hidden[1]) if hidden else len(value)
