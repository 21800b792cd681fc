"""The facts in which two runs differ, by class. Equal seeds are not needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincheck.facts.card import Card, Line


@dataclass(frozen=True, slots=True)
class Contrast:
    """A kind of fact that two runs show of one subject in different classes.

    Attributes:
        a, b: the lines of each run that the other one has not; one of them may be empty.
    """

    a: Sequence[Line]
    b: Sequence[Line]

    @property
    def rarity(self) -> float:
        """That of its most unusual line."""
        return min(line.rarity for line in (*self.a, *self.b))

    @property
    def part(self) -> str:
        return (*self.a, *self.b)[0].part


def contrasts(a: Card, b: Card) -> list[Contrast]:
    """The differences, the most unusual first. Lines of code may differ: they are not compared."""
    mine, yours = _by_subject(a.lines), _by_subject(b.lines)
    found = []
    for key in dict.fromkeys((*yours, *mine)):
        left, right = mine.get(key, []), yours.get(key, [])
        only_a, only_b = _without(left, right), _without(right, left)
        if only_a or only_b:
            found.append(Contrast(only_a, only_b))
    return sorted(found, key=lambda one: one.rarity)


def _by_subject(lines: Iterable[Line]) -> dict[tuple[str, str], list[Line]]:
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        found[line.fact.kind, line.fact.of].append(line)
    return found


def _without(lines: Sequence[Line], others: Sequence[Line]) -> list[Line]:
    """The lines whose class the others do not have, or have less often."""
    left = Counter(line.fact.seen_as for line in others)
    found = []
    for line in lines:
        if left[line.fact.seen_as]:
            left[line.fact.seen_as] -= 1
        else:
            found.append(line)
    return found
