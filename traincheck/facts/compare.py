"""The facts in which two runs differ, by class. Equal seeds are not needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from traincheck.facts.card import Card, Line


@dataclass(frozen=True, slots=True)
class Contrast:
    """A kind of fact that two runs show in different classes.

    Attributes:
        a, b: the lines of each run that the other one has not; one of them may be empty.
        more: how many other usual facts of this subject only the same run shows.
    """

    a: Sequence[Line]
    b: Sequence[Line]
    more: int = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of both runs."""
        return (*self.a, *self.b)

    @property
    def part(self) -> str:
        return self.lines[0].part

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Findings stand first and matters of taste last, the most unusual line decides."""
        has_finding = any(line.is_finding for line in self.lines)
        is_taste = all(line.is_taste for line in self.lines)
        return not has_finding, is_taste, min(line.rarity for line in self.lines)

    @property
    def rarity(self) -> float:
        """That of its most unusual line."""
        return self.order[-1]


def contrasts(a: Card, b: Card) -> list[Contrast]:
    """The differences, the most unusual first. Lines of code may differ: they are not compared.

    An object may have another name in each run, so what only one run shows of a kind is held
    against what only the other one shows of it.
    """
    mine, yours = _by_subject(a.lines), _by_subject(b.lines)
    both: list[Contrast] = []
    alone: dict[str, tuple[list[Line], list[Line]]] = defaultdict(lambda: ([], []))
    for key in dict.fromkeys((*yours, *mine)):
        left, right = mine.get(key, []), yours.get(key, [])
        if left and right:
            both.append(Contrast(_without(left, right), _without(right, left)))
        else:
            alone[key[0]][0].extend(left)
            alone[key[0]][1].extend(right)
    for left, right in alone.values():
        both += _paired(_without(left, right), _without(right, left))
    return sorted(_folded(one for one in both if one.lines), key=lambda one: one.order)


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


def _paired(a: Sequence[Line], b: Sequence[Line]) -> list[Contrast]:
    """One contrast where each run has one line of a kind, else one for each line."""
    if len(a) == len(b) == 1:
        return [Contrast(a, b)]
    return [Contrast([line], ()) for line in a] + [Contrast((), [line]) for line in b]


def _folded(found: Iterable[Contrast]) -> Iterator[Contrast]:
    """Usual facts of one subject that only one run shows, as one: the object is not used there."""
    alone: dict[tuple[str, bool], list[Contrast]] = defaultdict(list)
    for one in found:
        (first, *_) = one.lines
        is_usual = not any(line.is_unusual or line.severity for line in one.lines)
        if is_usual and first.fact.of and not (one.a and one.b):
            alone[first.fact.of, bool(one.a)].append(one)
        else:
            yield one
    for group in alone.values():
        yield replace(min(group, key=lambda one: one.rarity), more=len(group) - 1)
