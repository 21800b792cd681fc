"""Numbers of a profile as short text."""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = ("", "k", "M", "G", "T", "P")
_THOUSAND = 1000
_TEN = 10
_HUNDRED = 100
_NS_PER_MS = 1_000_000


def short(count: float, unit: str = "") -> str:
    """``3.29 M``: three digits and a power of 1000."""
    power = 0
    while abs(count) >= _THOUSAND and power < len(_UNITS) - 1:
        count /= _THOUSAND
        power += 1
    text = f"{count:.0f}" if not power else _three(count)
    return " ".join(filter(None, (text, _UNITS[power] + unit)))


def _three(count: float) -> str:
    size = abs(count)
    return f"{count:.2f}" if size < _TEN else f"{count:.1f}" if size < _HUNDRED else f"{count:.0f}"


def size(count: int) -> str:
    """Bytes, in powers of 1000: ``13.2 MB``."""
    return short(count, "B") if count else "0 B"


def milliseconds(nanoseconds: int) -> str:
    """``90.2``; three decimals below 1."""
    spent = nanoseconds / _NS_PER_MS
    return f"{spent:.3f}" if abs(spent) < 1 else f"{spent:.1f}"


def shape(sizes: Iterable[int]) -> str:
    """``4x128x256``; ``scalar`` for a tensor without dims."""
    return "x".join(map(str, sizes)) or "scalar"


def percent(share: float) -> str:
    """``2.1 %``."""
    return f"{100 * share:.1f} %"
