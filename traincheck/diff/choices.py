"""When a difference counts, and which names are compared: names of run B in those of run A."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Protocol

from traincheck.diff.items import Item, Key, Phase
from traincheck.errors import UsageError

# The draws of a generator and the samples of a batch are the same or not; no number is close.
_EXACT = (Phase.RNG,)


class Closeness(Protocol):
    """Decides which differing items count."""

    words: str

    def counts(self, item: Item) -> bool | None:
        """Whether a difference is one; None if nothing recorded can tell."""
        ...


class Exact:
    """Every bit counts."""

    words = "bit for bit"

    def counts(self, item: Item) -> bool | None:
        """Always."""
        return True


class Within:
    """Tolerances of `torch.testing.assert_close`: alike if |a - b| <= atol + rtol * |b|.

    Args:
        rtol: relative tolerance.
        atol: absolute tolerance.
    """

    def __init__(self, rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self.words = f"within rtol {rtol:g}, atol {atol:g}"

    def counts(self, item: Item) -> bool | None:
        """Whether a number is beyond the tolerance; None if no numbers were recorded."""
        if item.phase in _EXACT or item.what in ("presence", "form", "shape", "mode", "count"):
            return True
        if not item.gaps:
            if item.is_sized:
                return False
            return None if item.what in ("bits", "dtype") else True
        return not all(gap.size <= self._atol + self._rtol * abs(gap.b) for gap in item.gaps)


class Spread:
    """Alike if no farther apart than control runs are, times a factor.

    Args:
        factor: how many times the largest difference of the control runs is still alike.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._largest: dict[Key, dict[str, float]] = {}
        self.words = f"within {factor:g} x the spread of the control runs"

    def learn(self, items: Iterable[Item]) -> None:
        """Take in by how much a control run differs in one step."""
        for item in items:
            largest = self._largest.setdefault(item.key, {})
            for gap in item.gaps:
                largest[gap.name] = max(gap.size, largest.get(gap.name, 0.0))

    def counts(self, item: Item) -> bool | None:
        """Whether it exceeds the spread; None if controls differ and no number says how much."""
        largest = self._largest.get(item.key)
        if largest is None:
            return True
        if not item.gaps:
            return None
        return any(gap.size > self._factor * largest.get(gap.name, 0.0) for gap in item.gaps)


class Names:
    """Translates names of variables and modules of run B, and chooses those to be compared.

    Args:
        maps: texts ``OLD=NEW`` or ``OLD=NEW1|NEW2``: parts of dotted names in A and in B.
        select: patterns of names that are compared; empty for all.
        ignore: patterns of names that are not.

    Raises:
        UsageError: a text is not of this form.
    """

    def __init__(
        self, maps: Iterable[str] = (), select: Iterable[str] = (), ignore: Iterable[str] = ()
    ) -> None:
        self._select, self._ignore = tuple(select), tuple(ignore)
        self._rules: list[tuple[re.Pattern[str], str]] = []
        self._split: list[re.Pattern[str]] = []
        for text in maps:
            old, _, new = text.partition("=")
            parts = [part for part in new.split("|") if part]
            if not old or not parts:
                raise UsageError(
                    f"--map {text!r} does not name two parts of names",
                    fix="write OLD=NEW, e.g. --map encoder.layers=encoder.blocks",
                )
            if len(parts) == 1:
                self._rules.append((_part(parts[0]), old))
            else:
                self._split += [_part(old), *map(_part, parts)]
        self._known: dict[str, str | None] = {}
        self._chosen: dict[str, bool] = {}

    @property
    def is_plain(self) -> bool:
        """Whether names stay as they are."""
        return not (self._rules or self._split)

    def of_b(self, name: str) -> str | None:
        """The name in A; None for a part of what is one variable in A, which no part equals."""
        if self.is_plain:
            return name
        if name not in self._known:
            is_split, found = self.of_a(name) is None, name
            for part, old in self._rules:
                found = part.sub(lambda _, old=old: old, found)  # type: ignore[misc]
            self._known[name] = None if is_split else found
        return self._known[name]

    def of_a(self, name: str) -> str | None:
        """The name; None for a variable that is several in B."""
        return None if any(part.search(name) for part in self._split) else name

    def is_chosen(self, name: str) -> bool:
        """Whether `--select` and `--ignore` leave it in the comparison."""
        if not (self._select or self._ignore):
            return True
        if name not in self._chosen:
            is_selected = not self._select or _matches(name, self._select)
            self._chosen[name] = is_selected and not _matches(name, self._ignore)
        return self._chosen[name]


def _part(text: str) -> re.Pattern[str]:
    """Finds whole parts of a dotted name."""
    return re.compile(rf"(?<![^./]){re.escape(text)}(?![^./])")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
