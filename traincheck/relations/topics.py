"""The topic of an argument, by its name."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.schema.findings import Topic

# Parts of names of arguments, flags and batch parts. The first match wins.
_PARTS = (
    ("requires_grad", Topic.REQUIRES_GRAD),
    ("training", Topic.MODE),
    ("mask", Topic.MASK),
    ("causal", Topic.MASK),
)


def topic_of(names: Iterable[str]) -> Topic | None:
    """The topic of arguments with these names; None for names of no topic."""
    known = list(names)
    return next((topic for part, topic in _PARTS if any(part in name for name in known)), None)
