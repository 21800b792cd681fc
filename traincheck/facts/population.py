"""Counts of healthy programs by class of a fact, and the rarity of a fact among them.

Each program has one vote for a class, however often it shows it. A program that cannot show a kind
does not count for it. A kind that came later may be counted over fewer programs than the others.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from traincheck.errors import UsageError
from traincheck.schema.facts import Fact
from traincheck.schema.files import read_regular

UNUSUAL = 0.025  # up to this rarity a fact is shown among the unusual ones
_FORM = 1
_MOST_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Population:
    """Counts over healthy programs.

    Attributes:
        programs: how many there are.
        having: kind -> how many programs show it.
        showing: (kind, class) -> how many programs show that class.
        asked: kind -> how many programs it was counted over, where that is not all of them.
    """

    programs: int = 0
    having: Mapping[str, int] = field(default_factory=dict)
    showing: Mapping[tuple[str, str], int] = field(default_factory=dict)
    asked: Mapping[str, int] = field(default_factory=dict)

    def count(self, fact: Fact) -> int:
        """The number of programs that show a fact of this class."""
        return self.showing.get((fact.kind, fact.seen_as), 0)

    def rarity(self, fact: Fact) -> float:
        """The rarity of its class, in (0, 1]: the smaller, the more unusual.

        The geometric mean of two shares: among the programs that have the kind, and among all. A
        kind that few programs have says little by the first, and one that all have is the same by
        both. Each is smoothed by half a program, so that what no program shows is ordered by how
        many could.
        """
        asked = self.asked.get(fact.kind, self.programs)
        return rarity_of(self.count(fact), self.having.get(fact.kind, 0), asked)

    def with_new_kinds(self, other: Population) -> Population:
        """These counts, and those of the kinds that only another population has."""
        new = {kind: number for kind, number in other.having.items() if kind not in self.having}
        return Population(
            self.programs,
            {**self.having, **new},
            {**self.showing, **{key: n for key, n in other.showing.items() if key[0] in new}},
            {**self.asked, **{kind: other.asked.get(kind, other.programs) for kind in new}},
        )

    def __or__(self, other: Population) -> Population:
        """Both together, of different programs."""
        fewer = {
            kind: self.asked.get(kind, self.programs) + other.asked.get(kind, other.programs)
            for kind in {*self.asked, *other.asked}
        }
        return Population(
            self.programs + other.programs,
            Counter(self.having) + Counter(other.having),
            Counter(self.showing) + Counter(other.showing),
            fewer,
        )


def rarity_of(showing: int, having: int, programs: int) -> float:
    """See `Population.rarity`."""
    return math.sqrt((showing + 0.5) / (having + 1) * (showing + 0.5) / (programs + 1))


def population_of(programs: Iterable[Iterable[Fact]]) -> Population:
    """Count the facts of healthy programs."""
    having: Counter[str] = Counter()
    showing: Counter[tuple[str, str]] = Counter()
    number = 0
    for facts in programs:
        number += 1
        classes = {(fact.kind, fact.seen_as) for fact in facts}
        showing.update(classes)
        having.update({kind for kind, _ in classes})
    return Population(number, having, showing)


def shipped() -> Population:
    """The counts that traincheck comes with."""
    return read_population(Path(__file__).with_name("population.json"))


def read_population(path: Path) -> Population:
    """The counts in a file.

    Raises:
        UsageError: it is no such file.
    """
    try:
        return _decoded(read_regular(path, _MOST_BYTES), str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def encoded(population: Population) -> bytes:
    """The content of a file of counts."""
    kinds: dict[str, dict[str, Any]] = defaultdict(dict)
    for kind, programs in population.having.items():
        classes = {c: n for (name, c), n in population.showing.items() if name == kind}
        kinds[kind] = {"programs": programs, "classes": classes}
        if kind in population.asked:
            kinds[kind]["asked"] = population.asked[kind]
    found = {"form": _FORM, "programs": population.programs, "kinds": kinds}
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(found, option=options)


def _decoded(data: bytes, name: str) -> Population:
    try:
        found = orjson.loads(data)
        if found["form"] != _FORM:
            raise UsageError(
                f"{name} has the form {found['form']!r}; this version of traincheck reads {_FORM}",
                fix="count its programs again with this version",
            )
        having = {kind: int(row["programs"]) for kind, row in found["kinds"].items()}
        showing = {
            (kind, cls): int(number)
            for kind, row in found["kinds"].items()
            for cls, number in row["classes"].items()
        }
        asked = {k: int(row["asked"]) for k, row in found["kinds"].items() if "asked" in row}
        programs = int(found["programs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{name} is no population of facts: {error}",
            fix="its form is that of traincheck/facts/population.json",
        ) from error
    return Population(programs, having, showing, asked)
