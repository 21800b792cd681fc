"""Learn from hand-made traces, and decide single claims, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.check.engine import Engine
from traincheck.infer.engine import InferResult, Limits, Run, infer
from traincheck.readings.provider import RunStates
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Hypothesis, Invariant
from traincheck.schema.events import Event
from traincheck.schema.findings import Example, Report, Symptom


@dataclass
class Recorded:
    """A run in memory."""

    recorded: Sequence[Event]

    def events(self) -> Iterable[Event]:
        return iter(self.recorded)


def learn(*runs: Sequence[Event], **options: Any) -> InferResult:
    """What these runs teach."""
    limits = options.pop("limits", Limits())
    named = [Run(name=f"run{i}", source=Recorded(events)) for i, events in enumerate(runs)]
    return infer(named, limits=limits, **options)


def texts(result: InferResult, relation: str | None = None) -> list[str]:
    """The sentences learned."""
    return [i.text for i in result.invariants if relation in (None, i.hypothesis.relation)]


def claims(
    found: InferResult | Iterable[Invariant], relation: str, **params: Any
) -> list[Invariant]:
    """The invariants of one relation that have these parameters, whatever others they have."""
    invariants = found.invariants if isinstance(found, InferResult) else found
    return [
        invariant
        for invariant in invariants
        if invariant.hypothesis.relation == relation
        and all(invariant.hypothesis.params.get(k) == v for k, v in params.items())
    ]


def values_of(
    found: InferResult | Iterable[Invariant], relation: str, key: str, **params: Any
) -> list[Any]:
    """One parameter of each of these `claims`, None where it has no such parameter."""
    return [i.hypothesis.params.get(key) for i in claims(found, relation, **params)]


def report_of(invariants: Iterable[Invariant], events: Iterable[Event]) -> Report:
    """What the engine says of a run."""
    engine = Engine(invariants, (), RELATIONS)
    for event in events:
        engine.observe(event)
    return engine.finish()


class Fed:
    """A proposer or a decider, and the run states that it uses: fed first, as by the engine."""

    def __init__(self, part: Any) -> None:
        self.run_states = RunStates()
        self.part = self.run_states.bind(part)

    def observe(self, event: Event) -> Any:
        for run_state in self.run_states:
            run_state.observe(event)
        return self.part.observe(event)


def decide(relation: str, params: dict[str, Any], events: Iterable[Event]) -> list[Example]:
    """The examples of one claim, in order."""
    fed = Fed(RELATIONS[relation].decider([Hypothesis(relation=relation, params=params)]))
    found = [example for event in events for _, example in fed.observe(event)]
    return found + [example for _, example in fed.part.finish()]


def broken(examples: Iterable[Example]) -> list[tuple[int | None, Symptom, str | None]]:
    """Step, symptom and variable, module or API of the negative ones."""
    return [
        (e.step, e.symptom, e.subject.variable or e.subject.module or e.subject.api)
        for e in examples
        if not e.holds
    ]
