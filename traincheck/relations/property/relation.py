"""The relation *property*: what experiments and observations show stays as in reference runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

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
from traincheck.relations.property.base import Property, Reading
from traincheck.relations.property.experiments import EXPERIMENTS
from traincheck.relations.property.gradients import (
    HANDED_OVER,
    RECOMPUTED,
    RESCALED_SUMS,
    TRAINED_SUMS,
)
from traincheck.relations.property.states import (
    DATASET_READS,
    KEPT_STATE,
    LOADED_SETTING,
    LOADED_WEIGHTS,
    METRIC_PHASES,
    PADDING_VECTOR,
    RESTORED_GENERATOR,
    WRITTEN_SETTING,
)
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example

_ALL = (
    *EXPERIMENTS,
    TRAINED_SUMS,
    RESCALED_SUMS,
    HANDED_OVER,
    RECOMPUTED,
    LOADED_WEIGHTS,
    KEPT_STATE,
    RESTORED_GENERATOR,
    PADDING_VECTOR,
    LOADED_SETTING,
    WRITTEN_SETTING,
    METRIC_PHASES,
    DATASET_READS,
)
PROPERTIES: Mapping[str, Property] = {each.name: each for each in _ALL}


_Key = tuple[str, str]  # property and subject


class PropertyHolds(RelationBase):
    """A property that was read in all reference runs is the same.

    Claims:
        For one program and one subject, such as a model, an optimizer or a dataset:
        - An experiment of `traincheck probe` holds: a sample does not depend on the others of its
          batch or on its place, padding and later tokens take no part, no activation overwrites
          its input, statistics do not learn in evaluation, the gradient is that of the loss.
        - Each term of a sum of losses is behind the root of backward().
        - Gradients that accumulate are not scaled in between.
        - Gradients that the program writes itself are written before each update.
        - Checkpointed segments have the same values when they are recomputed.
        - The padding vector of an embedding is zero.
        - The first update after a load starts from the loaded weights.
        - The state that is kept as the best one has the lowest evaluation loss.
        - After a load, a hyper-parameter is the loaded one, or the one that was set before.
        - Hyper-parameters are set where the optimizer reads them.
        - A metric is computed over samples of one phase.
        - A sample of a dataset has the same values in each epoch.

    Example:
        ``In train.py, padding takes no part in the results of Encoder.`` It breaks when the mask
        of padding gets another shape.

    Evidence:
        - An experiment, a load, a metric and a comparison of a dataset are ten examples each: they
          compare many numbers. A step is one example.
        - What varies within a run proves nothing, and is not claimed.

    Chance:
        A coin for each example.

    Not claimed:
        - What could not be observed. Experiments need runs that were recorded with `--probe`.
        - Properties that do not hold in the reference run.
    """

    name = "property"

    def proposer(self) -> PropertyProposer:
        return PropertyProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> PropertyDecider:
        return PropertyDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        """Marks too, which name the program; files of invariants hold no texts of marks."""
        needs = PROPERTIES[claim.params["what"]].needs
        return replace(needs | Needs(kinds=frozenset({"mark"})), marks=frozenset())

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, _says(claim.params))

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which the property of this subject was not read proves nothing."""
        params = claim.params
        return {"program": params["program"], "api": _word((params["what"], params["of"]))}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        found = super().info(claim, check_id, text)
        words = PROPERTIES[claim.params["what"]]
        return replace(
            found,
            severity="warning",
            headline=words.headline,
            likely_cause=words.cause,
            fix=words.fix,
        )


class _Readers:
    """The readers of some properties, in this order; each gets the events that it needs."""

    def __init__(self, names: Iterable[str]) -> None:
        self._all = [(name, PROPERTIES[name].reader()) for name in names]
        self._router = Router([(PROPERTIES[name].needs, (name, one)) for name, one in self._all])

    def observe(self, event: Event) -> Iterator[tuple[str, Reading]]:
        """Names of properties, and what the event shows of them."""
        for name, reader in self._router.route(event):
            for reading in reader.observe(event):
                yield name, reading

    def finish(self) -> Iterator[tuple[str, Reading]]:
        """What the end of the run shows."""
        for name, reader in self._all:
            for reading in reader.finish():
                yield name, reading


class PropertyProposer(ProposerBase):
    """Proposes what never varied."""

    observes = reduce(or_, (each.needs for each in PROPERTIES.values()))

    def __init__(self) -> None:
        self._readers = _Readers(PROPERTIES)
        self._values: dict[_Key, set[str]] = {}

    def observe(self, event: Event) -> None:
        self._enter(self._readers.observe(event))

    def hypotheses(self) -> Iterator[Hypothesis]:
        self._enter(self._readers.finish())
        if self._program.name is None:
            return
        for (what, of), values in sorted(self._values.items()):
            if len(values) == 1 and values <= PROPERTIES[what].claims.keys():
                params = {"what": what, "of": of, "value": min(values)}
                params["program"] = self._program.name
                yield Hypothesis(relation="property", params=params)

    def observed_terms(self) -> Iterator[str]:
        """A term for each subject of which a property was read."""
        return map(_word, self._values)

    def _enter(self, found: Iterable[tuple[str, Reading]]) -> None:
        for name, reading in found:
            self._values.setdefault((name, reading.of), set()).add(reading.value)


class PropertyDecider(OfProgram):
    """Decides at each reading."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[_Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            params = claim.params
            known = PROPERTIES.get(params.get("what", ""))
            if known is None or params.get("value") not in known.claims or "of" not in params:
                raise ValueError(f"nothing is known of {dict(params)}")
            self._claims.setdefault((known.name, params["of"]), []).append((index, params))
        self._readers = _Readers(dict.fromkeys(name for name, _ in self._claims))

    def observe(self, event: Event) -> Examples:
        return [d for found in self._readers.observe(event) for d in self._decide(*found)]

    def finish(self) -> Examples:
        return [d for found in self._readers.finish() for d in self._decide(*found)]

    def _decide(self, name: str, reading: Reading) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims.get((name, reading.of), ()):
            if not self._program.fits(params):
                continue
            if reading.value == params["value"]:
                yield from [(index, SATISFIED)] * reading.weight
            else:
                yield index, _negative(params, reading)


def _negative(params: Mapping[str, Any], reading: Reading) -> Example:
    return counterexample(
        reading.event,
        reading.at,
        _says(params),
        reading.seen,
        PROPERTIES[params["what"]].symptom,
    )


def _says(params: Mapping[str, Any]) -> str:
    return PROPERTIES[params["what"]].says(params["of"], params["value"])


def _word(key: _Key) -> str:
    return f"property {' '.join(key)}"
