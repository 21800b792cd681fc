"""The relation *scales*: numbers of a whole run, compared with those of the reference runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.relations.base import (
    SATISFIED,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program
from traincheck.relations.scales.quantities import HIGH, LOW, QUANTITIES, RunReading
from traincheck.relations.scales.schedules import FirstSizes, Schedules
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example

_Key = tuple[str, str, str]  # quantity, owner, and what it depends on
_WORTH = 10  # examples: a run does not have the scale of another one by chance
_BOUNDS = {LOW: "at least", HIGH: "at most"}


class Scales(RelationBase):
    """A number of a run is near that of the reference runs.

    Claims:
        A limit of one of these, for one program:
        - The sum of the losses passed to backward() before the first update.
        - The norm of the gradients of the first update.
        - The last learning rate, divided by the largest one.
        - The length of a schedule, divided by the number of updates, if it is 1.

    Example:
        ``In train.py, the losses passed to backward() before the first update sum to at most 7.1
        (32 rows of about 16 values, 1 backward pass, 963 parameters).`` It breaks when the loss is
        a sum instead of a mean.

    Evidence:
        - A run is ten examples.
        - Limits of a loss or gradient are 3 times as wide as the first four readings of all
          reference runs, or as much wider as the largest of these is larger than the smallest.
        - Limits of a rate are 3 times and 5 % of the peak as wide, those of a length 1.1 times.
        - A run breaks a limit of a loss or gradient if all its first four readings do.
        - Only runs with the same number of rows in a batch, backward passes, parameters and ranks
          are compared; for schedules, with the same number of updates.

    Chance:
        A coin for each example.

    Not claimed:
        - Losses of runs that resume or start from a file, and losses scaled for half precision.
        - Rates that follow a metric, e.g. of ReduceLROnPlateau.
        - Losses that reach zero.
        - Weights of terms of a loss (see *loss_terms*), and steps of a scheduler for each update
          (see *count*).
    """

    name = "scales"

    def proposer(self) -> ScaleProposer:
        return ScaleProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ScaleDecider:
        return ScaleDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        return QUANTITIES[claim.params["what"]].needs

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, f"{_says(claim.params)} ({claim.params['under']})")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """A narrower limit of the same number implies a wider one."""
        mine, its = dict(claim.params), dict(other.params)
        if LOW in mine and LOW in its:
            is_narrower = mine.pop(LOW) >= its.pop(LOW)
        else:
            is_narrower = mine.pop(HIGH, 0.0) <= its.pop(HIGH, 0.0)
        return claim.relation == other.relation and mine == its and is_narrower

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which this was not read, or which is of another size, proves nothing."""
        params = claim.params
        key = (params["what"], params.get("of", ""), params["under"])
        return {"program": params["program"], "api": _word(key)}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        words = QUANTITIES[claim.params["what"]]
        return replace(
            super().info(claim, check_id, text),
            severity=words.severity,
            headline=words.headline,
            likely_cause=words.cause,
            fix=words.fix,
        )


class ScaleReader:
    """Reads all quantities of a process."""

    def __init__(self) -> None:
        self._sizes = FirstSizes()
        self._schedules = Schedules()

    def observe(self, event: Event) -> Iterable[RunReading]:
        """The readings that an event completes."""
        self._schedules.observe(event)
        return self._sizes.observe(event)

    def finish(self) -> Iterable[RunReading]:
        """The readings that need the whole run."""
        return self._schedules.finish()


class ScaleProposer(ProposerBase):
    """Proposes the limits of what was read."""

    observes = asked("batch", "call", "checkpoint", "mark", "step", "gradient@*", "parameter@new")

    def __init__(self) -> None:
        self._reader = ScaleReader()
        self._values: dict[_Key, list[float]] = {}

    def observe(self, event: Event) -> None:
        self._enter(self._reader.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        self._enter(self._reader.finish())
        for (what, of, under), values in sorted(self._values.items()):
            limits = QUANTITIES[what].limits(min(values), max(values))
            for bound, value in sorted(limits.items()) if self._program.name else ():
                params = {"program": self._program.name, "what": what, "under": under}
                params |= {"of": of} if of else {}
                yield Hypothesis(relation="scales", params={**params, bound: value})

    def observed_terms(self) -> Iterator[str]:
        """A term for each number that was read."""
        return map(_word, self._values)

    def _enter(self, readings: Iterable[RunReading]) -> None:
        for reading in readings:
            self._values.setdefault(_key(reading), []).extend(reading.values)


class ScaleDecider(OfProgram):
    """Decides at each reading."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[_Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            params = claim.params
            if params.get("what") not in QUANTITIES or (LOW in params) == (HIGH in params):
                raise ValueError(f"nothing is known of {dict(params)}")
            key = (params["what"], params.get("of", ""), params.get("under", ""))
            self._claims.setdefault(key, []).append((index, params))
        self._reader = ScaleReader()

    def observe(self, event: Event) -> Examples:
        return self._decide(self._reader.observe(event))

    def finish(self) -> Examples:
        return self._decide(self._reader.finish())

    def _decide(self, readings: Iterable[RunReading]) -> Examples:
        found: list[tuple[int, Example]] = []
        for reading in readings:
            for index, params in self._claims.get(_key(reading), ()):
                if not self._program.fits(params):
                    continue
                low, high = min(reading.values), max(reading.values)
                if high >= params.get(LOW, high) and low <= params.get(HIGH, low):
                    found += [(index, SATISFIED)] * _WORTH
                else:
                    found.append((index, _negative(params, reading)))
        return found


def _negative(params: Mapping[str, Any], reading: RunReading) -> Example:
    words = QUANTITIES[reading.what]
    says = _says(params)
    return counterexample(
        reading.event, reading.at, says, reading.seen, words.symptom, stage="train"
    ).replace(topic=words.topic)


def _says(params: Mapping[str, Any]) -> str:
    bound = LOW if LOW in params else HIGH
    text = QUANTITIES[params["what"]].text.format(of=params.get("of", ""))
    return f"{text} {_BOUNDS[bound]} {params[bound]:g}"


def _key(reading: RunReading) -> _Key:
    return reading.what, reading.of, reading.under


def _word(key: _Key) -> str:
    return f"scale {' '.join(key)}"
