"""What stands in a trace for texts that are not written. Loads nothing: training uses it."""

from __future__ import annotations

import re

MASK = "<masked>"  # in place of a value under a name that secrets have
_HIDDEN = re.compile(r"<text (\d{1,18}) [0-9a-f]+>\Z")


def hidden_text(length: int, digest: str) -> str:
    """What stands for a text that is not written: its length and fingerprint."""
    return f"<text {length} {digest}>"


def text_length(value: str) -> int:
    """The number of characters of a text, also of one that `hidden_text` stands for."""
    hidden = _HIDDEN.match(value)
    return int(hidden[1]) if hidden else len(value)
