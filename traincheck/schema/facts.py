"""A fact of a run: what the training did, as it was seen. A fact is no verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traincheck.schema.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that was seen of one subject.

    Attributes:
        kind: its name in the table of kinds (facts/kinds.py), such as ``update.backwards``.
        of: whose it is, by the name that a user knows; empty if it is the run's.
        seen_as: one of the classes of its kind, by which programs are compared.
        values: what its sentence names.
        where: ``file:line`` of the user's code; empty if none is known.
        count: in how many of the looks the class was seen.
        looks: how often the subject was looked at; 0 where the whole run is one look.
        first_step: the first step in which the class was seen; None where it is of the whole run.
        ranks: where it was seen, if not on all ranks.
    """

    kind: str
    of: str = ""
    seen_as: str
    values: Mapping[str, Value] = field(default_factory=dict)
    where: str = ""
    count: int = 0
    looks: int = 0
    first_step: int | None = None
    ranks: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, subject and place. Two runs of a program are compared by it."""
        return self.kind, self.of, self.where

    @property
    def share(self) -> float:
        """In which part of the looks the class was seen, in (0, 1]."""
        return self.count / self.looks if self.looks else 1.0


def over_ranks(found: Iterable[tuple[int, Fact]]) -> list[Fact]:
    """The facts of all ranks, each with its rank, as facts of the run.

    A fact that all ranks show alike is one. A rank that shows no fact at all does not count.
    """
    alike: dict[Any, dict[int, Fact]] = defaultdict(dict)
    everywhere: set[int] = set()
    for rank, fact in found:
        everywhere.add(rank)
        alike[fact.key, fact.seen_as].setdefault(rank, fact)
    return [
        replace(
            next(iter(by_rank.values())),
            ranks=() if set(by_rank) == everywhere else tuple(sorted(by_rank)),
        )
        for by_rank in alike.values()
    ]
