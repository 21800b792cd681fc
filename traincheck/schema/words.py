"""Common phrases of all texts: counts and lists of names."""

from __future__ import annotations

from collections.abc import Sequence

_ES = ("s", "x", "ch", "sh")
_HARD = "epoch"  # its ch is pronounced k


def counted(number: int, word: str) -> str:
    """``1 step``, ``2,000 steps``, ``3 batches``, ``3 epochs``."""
    ending = "es" if word.endswith(_ES) and not word.endswith(_HARD) else "s"
    return f"{number:,} {word}{'' if number == 1 else ending}"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``: all of them. There is at least one."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def joined(names: Sequence[str], limit: int = 4) -> str:
    """``a, b and 3 more``: the first ``limit`` of them."""
    shown, left = ", ".join(names[:limit]), len(names) - limit
    return f"{shown} and {left:,} more" if left > 0 else shown
