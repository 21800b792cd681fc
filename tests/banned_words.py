"""Words and phrases that no text of traincheck contains: pages, docstrings, comments, messages."""

from __future__ import annotations

import re

BANNED = (
    "anew",
    "as it were",
    "at hand",
    "by turns",
    "in vain",
    "is told of",
    "judges nothing",
    "keeps off",
    "looks at",
    "no occasion",
    "of its own",
    "speaks of",
    "told of",
    "wants",  # needs
)
# Names of rules and modules contain some of the words; those are no sentences.
BANNED_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(BANNED)})(?![\w-])", re.IGNORECASE)
