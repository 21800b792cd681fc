"""One engine for relations that learn what readings always are, with one table of words each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from traincheck.readings.provider import Router
from traincheck.readings.reading import Key, Reader, Reading, Row
from traincheck.relations.base import (
    SATISFIED,
    OfProgram,
    ProposerBase,
    RelationBase,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Example
from traincheck.schema.protocols import Proposer


class Learned(RelationBase):
    """A relation whose claims are limits of readings.

    Attributes:
        rows: its table, by name.
        term: the first word of the terms of its readings.
        named: the parameters of a claim that name what is read of whom, as in `Key`.
    """

    rows: ClassVar[Mapping[str, Row]]
    term: ClassVar[str]
    named: ClassVar[tuple[str, ...]] = Key._fields

    def proposer(self) -> Proposer:
        return ReadingProposer(self)

    def decider(self, claims: Sequence[Hypothesis]) -> ReadingDecider:
        return ReadingDecider(self, claims)

    def row(self, claim: Hypothesis) -> Row:
        """The row of what a claim is about."""
        return self.rows[claim.params[self.named[0]]]

    def needs(self, claim: Hypothesis) -> Needs:
        """Marks too, which name the program; files of invariants hold no texts of marks."""
        needs = self.row(claim).needs | Needs(kinds=frozenset({"mark"}))
        return replace(needs, marks=frozenset())

    def text(self, claim: Hypothesis) -> str:
        under = f" ({claim.params['under']})" if "under" in claim.params else ""
        return in_program(claim.params, self.row(claim).says(claim.params) + under)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which this was not read proves nothing."""
        return {"program": claim.params["program"], "api": self.word(self.key(claim.params))}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        words = self.row(claim)
        return {
            "severity": words.severity,
            "headline": words.headline,
            "likely_cause": words.cause_of(claim.params),
            "fix": words.fix,
        }

    def key(self, params: Mapping[str, Any]) -> Key:
        """The key of the readings that a claim is about."""
        return Key(*(params.get(name, "") for name in self.named))

    def word(self, key: Key) -> str:
        """The term for readings of this key."""
        return " ".join((self.term, *key[: len(self.named)]))


class _Readers:
    """The readers of some rows, in this order; each gets the events that its rows need."""

    def __init__(self, rows: Iterable[Row]) -> None:
        needs: dict[Callable[[], Reader], Needs] = {}
        for row in rows:
            needs[row.reader] = needs.get(row.reader, Needs()) | row.needs
        self._all = {make: make() for make in needs}
        self._router = Router([(needs[make], one) for make, one in self._all.items()])

    def observe(self, event: Event) -> Iterator[Reading]:
        for reader in self._router.route(event):
            yield from reader.observe(event)

    def finish(self) -> Iterator[Reading]:
        for reader in self._all.values():
            yield from reader.finish()


class ReadingProposer(ProposerBase):
    """Proposes what all readings of a key have in common."""

    def __init__(self, relation: Learned) -> None:
        rows = relation.rows.values()
        self.observes = reduce(or_, (row.needs for row in rows))
        self._relation = relation
        self._readers = _Readers(rows)
        self._values: dict[Key, dict[Any, None]] = {}  # each value once, in order

    def observe(self, event: Event) -> None:
        self._enter(self._readers.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        self._enter(self._readers.finish())
        relation = self._relation
        for key, values in self._values.items() if self._program.name else ():
            params: dict[str, Any] = {n: text for n, text in zip(relation.named, key) if text}
            params["program"] = self._program.name
            for claim in relation.rows[key.what].claimed(values):
                yield Hypothesis(relation=relation.name, params={**params, **claim})

    def observed_terms(self) -> Iterator[str]:
        """A term for each key that was read."""
        return map(self._relation.word, self._values)

    def _enter(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._values.setdefault(reading.key, {})[reading.value] = None


class ReadingDecider(OfProgram):
    """Decides at each reading."""

    def __init__(self, relation: Learned, claims: Sequence[Hypothesis]) -> None:
        self._rows = relation.rows
        self._claims: dict[Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            key = relation.key(claim.params)
            row = self._rows.get(key.what)
            if row is None or not row.is_known(claim.params):
                raise ValueError(f"nothing is known of {dict(claim.params)}")
            self._claims.setdefault(key, []).append((index, claim.params))
        self._readers = _Readers(self._rows[key.what] for key in self._claims)

    def observe(self, event: Event) -> Examples:
        return [one for found in self._readers.observe(event) for one in self._decide(found)]

    def finish(self) -> Examples:
        return [one for found in self._readers.finish() for one in self._decide(found)]

    def _decide(self, reading: Reading) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims.get(reading.key, ()):
            if self._program.fits(params):
                yield from self._judge(index, params, reading)

    def _judge(self, index: int, params: Mapping[str, Any], reading: Reading) -> Examples:
        row = self._rows[reading.what]
        if row.allows(params, reading.value):
            return ((index, SATISFIED),) * reading.weight
        return ((index, negative(row, params, reading)),)


def negative(row: Row, params: Mapping[str, Any], reading: Reading) -> Example:
    """The example of a reading that breaks a claim."""
    return counterexample(
        reading.event,
        row.at(reading),
        row.says(params),
        row.seen(params, reading),
        row.symptom,
        stage=row.stage(reading),
    ).replace(topic=row.topic)
