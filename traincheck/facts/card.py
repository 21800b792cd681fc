"""The card of a run: its facts in the order of how unusual they are among healthy programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traincheck.facts.kinds import PARTS
from traincheck.facts.population import UNUSUAL, Population
from traincheck.facts.table import KINDS
from traincheck.schema.facts import Fact


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a card.

    Attributes:
        fact: what was seen.
        text: its sentence.
        programs: how many healthy programs show a fact of this class.
        among: how many have the kind.
        rarity: in (0, 1]; the smaller, the more unusual.
    """

    fact: Fact
    text: str
    programs: int
    among: int
    rarity: float

    @property
    def is_unusual(self) -> bool:
        return self.rarity <= UNUSUAL

    @property
    def part(self) -> str:
        return KINDS[self.fact.kind].part


@dataclass(frozen=True, slots=True)
class Card:
    """All lines, the most unusual first.

    Attributes:
        lines: in this order.
        programs: how many healthy programs they are compared with.
    """

    lines: Sequence[Line]
    programs: int

    @property
    def unusual(self) -> list[Line]:
        """The lines that few healthy programs have."""
        return [line for line in self.lines if line.is_unusual]

    @property
    def usual(self) -> list[Line]:
        """The other lines, by part."""
        rest = [line for line in self.lines if not line.is_unusual]
        return sorted(rest, key=lambda line: PARTS.index(line.part))


def card_of(facts: Iterable[Fact], population: Population) -> Card:
    """Order facts by rarity, then by how much of the run they concern."""
    lines = [
        Line(
            fact,
            KINDS.sentence(fact),
            population.count(fact),
            population.having.get(fact.kind, 0),
            population.rarity(fact),
        )
        for fact in facts
    ]
    lines.sort(key=lambda line: (line.rarity, -line.fact.share))
    return Card(lines, population.programs)
