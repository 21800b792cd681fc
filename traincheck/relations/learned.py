"""One engine for relations that learn what readings always are, with one table of words each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from traincheck.readings.reading import Reader, Reading
from traincheck.readings.router import Router
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
from traincheck.schema.findings import CheckInfo, Example, Symptom, Topic

_Key = tuple[str, str | None, str | None]  # what is read, its owner, and what it depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(ABC):
    """One quantity: how it is read, what is claimed of its readings, and the texts of findings.

    Attributes:
        name: in claims.
        needs: what a trace must hold to read it.
        reader: makes one for a process.
        headline, cause, fix, symptom, topic, severity: of a finding.
    """

    name: str
    needs: Needs
    reader: Callable[[], Reader]
    headline: str
    cause: str
    fix: str
    symptom: Symptom = Symptom.WRONG_VALUE
    topic: Topic | None = None
    severity: str = "warning"

    @abstractmethod
    def claimed(self, values: Iterable[Any]) -> Iterable[dict[str, Any]]:
        """Parameters of the claims that the readings of a run support. values: each once."""

    @abstractmethod
    def is_known(self, params: Mapping[str, Any]) -> bool:
        """Whether this version can decide a claim with these parameters."""

    @abstractmethod
    def allows(self, params: Mapping[str, Any], value: Any) -> bool:
        """Whether a reading agrees with a claim."""

    @abstractmethod
    def says(self, params: Mapping[str, Any]) -> str:
        """The clause of a claim."""


class Learned(RelationBase):
    """A relation whose claims are limits of readings.

    Attributes:
        rows: its table, by name.
        term: the first word of the terms of its readings.
    """

    rows: ClassVar[Mapping[str, Row]]
    term: ClassVar[str]

    def proposer(self) -> ReadingProposer:
        return ReadingProposer(self)

    def decider(self, claims: Sequence[Hypothesis]) -> ReadingDecider:
        return ReadingDecider(self, claims)

    def needs(self, claim: Hypothesis) -> Needs:
        """Marks too, which name the program; files of invariants hold no texts of marks."""
        needs = self.rows[claim.params["what"]].needs
        return replace(needs | Needs(kinds=frozenset({"mark"})), marks=frozenset())

    def text(self, claim: Hypothesis) -> str:
        under = f" ({claim.params['under']})" if "under" in claim.params else ""
        return in_program(claim.params, self.rows[claim.params["what"]].says(claim.params) + under)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which this was not read proves nothing."""
        return {"program": claim.params["program"], "api": self.word(_key_of(claim.params))}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        words = self.rows[claim.params["what"]]
        return replace(
            super().info(claim, check_id, text),
            severity=words.severity,
            headline=words.headline,
            likely_cause=words.cause,
            fix=words.fix,
        )

    def word(self, key: _Key) -> str:
        """The term for readings of this key."""
        what, of, under = key
        return " ".join((self.term, what, of or "", *([] if under is None else [under])))


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
        self._values: dict[_Key, dict[Any, None]] = {}  # each value once, in order

    def observe(self, event: Event) -> None:
        self._enter(self._readers.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        self._enter(self._readers.finish())
        for (what, of, under), values in self._values.items() if self._program.name else ():
            given = {"program": self._program.name, "what": what, "of": of, "under": under}
            params = {name: value for name, value in given.items() if value is not None}
            for claim in self._relation.rows[what].claimed(values):
                yield Hypothesis(relation=self._relation.name, params={**params, **claim})

    def observed_terms(self) -> Iterator[str]:
        """A term for each key that was read."""
        return map(self._relation.word, self._values)

    def _enter(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._values.setdefault(_key(reading), {})[reading.value] = None


class ReadingDecider(OfProgram):
    """Decides at each reading."""

    def __init__(self, relation: Learned, claims: Sequence[Hypothesis]) -> None:
        self._rows = relation.rows
        self._claims: dict[_Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            row = self._rows.get(claim.params.get("what", ""))
            if row is None or not row.is_known(claim.params):
                raise ValueError(f"nothing is known of {dict(claim.params)}")
            self._claims.setdefault(_key_of(claim.params), []).append((index, claim.params))
        self._readers = _Readers(self._rows[what] for what, *_ in self._claims)

    def observe(self, event: Event) -> Examples:
        return [one for found in self._readers.observe(event) for one in self._decide(found)]

    def finish(self) -> Examples:
        return [one for found in self._readers.finish() for one in self._decide(found)]

    def _decide(self, reading: Reading) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims.get(_key(reading), ()):
            if not self._program.fits(params):
                continue
            row = self._rows[reading.what]
            if row.allows(params, reading.value):
                yield from [(index, SATISFIED)] * reading.weight
            else:
                says = row.says(params)
                yield (
                    index,
                    counterexample(
                        reading.event, reading.at, says, reading.seen, row.symptom
                    ).replace(topic=row.topic),
                )


def _key(reading: Reading) -> _Key:
    return reading.what, reading.of, reading.under


def _key_of(params: Mapping[str, Any]) -> _Key:
    return params["what"], params.get("of"), params.get("under")
