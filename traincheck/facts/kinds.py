"""Kinds of facts: their classes, and the sentence of each class.

A kind has a class for "did not happen", or its rarity could not be counted. A sentence states what
was seen. What would follow from it, whether it is wrong, and why it is so, are not said.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.schema.facts import Fact
from traincheck.schema.words import counted

SHOWN = 3  # names that a sentence tells; the rest is counted
# Parts of a card, in its order, with their headings.
PARTS = (
    "signal", "loss", "values", "rows", "loop", "copies", "randomness", "evaluation", "saved",
    "operators", "ranks",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fact.

    Attributes:
        name: part and quantity, ``loop.backwards``.
        classes: class -> its sentence; ``{name}`` stands for a value, ``{of}`` for the subject,
            ``{share:%}`` for a share in percent.
        look: what is counted as one look, in the singular; empty where the whole run is one.
        unsaid: what a reader might take it for, and what it does not say.
        is_head: whether it is told in the head of the card and not ordered by rarity.
    """

    name: str
    classes: Mapping[str, str]
    look: str = ""
    unsaid: str = ""
    is_head: bool = False

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]


class _Sentence(string.Formatter):
    """Numbers are written for people; a field may not reach into a value."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "%":
            return f"{number_text(100.0 * value)} %"
        if format_spec:  # "{number:step}"
            return counted(value, format_spec)
        return number_text(value)


def number_text(value: object) -> str:
    """A number as people write it; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e12 else f"{value:.3g}"  # noqa: PLR2004


class Kinds:
    """A table of kinds.

    Raises:
        ValueError: two kinds have one name, or a kind is of an unknown part.
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._by_name: dict[str, Kind] = {}
        for kind in kinds:
            if kind.name in self._by_name or kind.part not in PARTS:
                raise ValueError(f"kind of facts {kind.name!r} is there twice, or of no part")
            self._by_name[kind.name] = kind

    def __getitem__(self, name: str) -> Kind:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_name.values())

    def sentence(self, fact: Fact) -> str:
        """The sentence of a fact: what was seen, how often, and on which ranks."""
        kind = self._by_name[fact.kind]
        text = _Sentence().vformat(kind.classes[fact.seen_as], (), {"of": fact.of, **fact.values})
        if kind.look and fact.looks:
            text += f", in {fact.count:,} of {counted(fact.looks, kind.look)}"
        if fact.ranks:
            many = "s" if len(fact.ranks) > 1 else ""
            text += f", on rank{many} {', '.join(map(str, fact.ranks[:8]))}"
        return text
