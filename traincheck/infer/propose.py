"""First pass over a run: which hypotheses are worth testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

import orjson

from traincheck.infer.coverage import CoverageCollector, RunCoverage, union
from traincheck.infer.replay_views import with_gaps
from traincheck.readings.provider import Router, RunStates
from traincheck.readings.steps import is_judged
from traincheck.schema.claims import Hypothesis, key_of
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.protocols import EventSource, Proposer, Relation, is_for_run

_SUBJECT = ("api", "outer", "after", "before", "role", "of", "quantity")  # parameters


def subject_of(claim: Hypothesis) -> tuple[str, ...]:
    """The subject of a claim. Only claims with the same subject can imply each other."""
    return (claim.relation, *(str(claim.params.get(key)) for key in _SUBJECT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The result of one pass over a run.

    Attributes:
        claims: by key.
        conditional: keys of the claims that are tested only if another run proposes them.
        coverage: what the run could have shown.
        events: number of events.
        steps: number of complete steps, of the process that has most.
        skipped: number of lines that could not be read.
    """

    claims: Mapping[str, Hypothesis]
    conditional: frozenset[str]
    coverage: RunCoverage
    events: int
    steps: int
    skipped: int


def by_scope(
    relations: Mapping[str, Relation],
) -> tuple[dict[str, Relation], dict[str, Relation]]:
    """The relations that see one process, and those that see the whole run."""
    shared = {name: relation for name, relation in relations.items() if is_for_run(relation)}
    return {name: r for name, r in relations.items() if name not in shared}, shared


def propose(source: EventSource, relations: Mapping[str, Relation]) -> Proposed:
    """Collect hypotheses in one pass over a run.

    Each process has its own proposers. Proposers of relations for the whole run see all ranks.
    """
    processes: dict[tuple[int, str], tuple[CoverageCollector, list[Proposer]]] = {}
    routers: dict[tuple[int, str], Router[Callable[[Event], object]]] = {}
    own, shared = by_scope(relations)
    run_states = RunStates()  # of the whole run
    for_all = [run_states.bind(shared[name].proposer()) for name in sorted(shared)]
    receivers = [*run_states.receivers(), *((p.observes, p.observe) for p in for_all)]
    stream, rank = "", -1
    steps: Counter[tuple[int, str]] = Counter()
    events = 0
    for event in with_gaps(source.events()):
        events += 1
        if isinstance(event, StepEvent):
            steps[event.rank, event.stream] += is_judged(event)
        if event.stream != stream or event.rank != rank:
            stream, rank = event.stream, event.rank
            process = (rank, stream.partition("-")[0])
            if process not in processes:
                run_states = RunStates()
                collector = run_states.bind(CoverageCollector())
                proposers = [run_states.bind(own[name].proposer()) for name in sorted(own)]
                processes[process] = collector, proposers
                mine = [(one.observes, one.observe) for one in proposers]
                mine.insert(0, (collector.observes, collector.observe))
                routers[process] = Router([*run_states.receivers(), *mine, *receivers])
            observers_of = routers[process].route
        for observe in observers_of(event):
            observe(event)
    everybody = (*(p for _, own_ in processes.values() for p in own_), *for_all)
    proposed: dict[str, Hypothesis] = {}
    conditional: dict[str, Hypothesis] = {}
    for proposer in everybody:
        proposed.update(map(_keyed, proposer.hypotheses()))
        conditional.update(map(_keyed, proposer.conditional_hypotheses()))
    terms = RunCoverage(calls=frozenset(w for p in everybody for w in p.observed_terms()))
    return Proposed(
        claims={**conditional, **proposed},
        conditional=frozenset(conditional.keys() - proposed.keys()),
        coverage=reduce(
            union, (collector.coverage() for collector, _ in processes.values()), terms
        ),
        events=events,
        steps=max(steps.values(), default=0),
        skipped=getattr(source, "skipped", 0),  # a source in memory has no lines
    )


def _keyed(claim: Hypothesis) -> tuple[str, Hypothesis]:
    """A claim and its key. Its parameters are as read from a file: lists, sorted keys."""
    key = key_of(claim)
    params = orjson.loads(key.partition(" ")[2])
    return key, Hypothesis(relation=claim.relation, params=params)
