"""First pass: which hypotheses are worth testing. Decides nothing about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import orjson

from traincheck.facts.steps import is_judged
from traincheck.infer.coverage import Listener, Vocabulary, joined
from traincheck.infer.replay_views import with_gaps
from traincheck.schema.claims import Hypothesis, key_of
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.protocols import EventSource, Proposer, Relation, is_for_run

_SUBJECT = ("api", "outer", "after", "before", "role", "of", "quantity")  # parameters


def subject_of(claim: Hypothesis) -> tuple[str, ...]:
    """What a claim speaks of: only claims about the same can imply each other."""
    return (claim.relation, *(str(claim.params.get(key)) for key in _SUBJECT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What one pass over a run gave.

    claims: by key; echoed: keys of those that are worth testing only if another run proposes them.
    steps: complete ones, of the process that has most. skipped: lines that could not be read.
    """

    claims: Mapping[str, Hypothesis]
    echoed: frozenset[str]
    vocabulary: Vocabulary
    events: int
    steps: int
    skipped: int


def by_scope(
    relations: Mapping[str, Relation],
) -> tuple[dict[str, Relation], dict[str, Relation]]:
    """Those that look at one process, and those that look at all of a run."""
    shared = {name: relation for name, relation in relations.items() if is_for_run(relation)}
    return {name: r for name, r in relations.items() if name not in shared}, shared


def propose(source: EventSource, relations: Mapping[str, Relation]) -> Proposed:
    """Hypotheses by key, from one pass over a run.

    Each process is watched by itself, but by relations that speak of all ranks: these see all.
    """
    processes: dict[tuple[int, str], tuple[Listener, list[Proposer]]] = {}
    own, shared = by_scope(relations)
    for_all = [shared[name].proposer() for name in sorted(shared)]
    stream, rank = "", -1
    observers: list[Callable[[Event], None]] = []
    of_state = observers  # nine events in ten are changes of state
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
                proposers = [own[name].proposer() for name in sorted(own)]
                processes[process] = (Listener(), proposers)
            listener, proposers = processes[process]
            everybody = (*proposers, *for_all)
            observers = [listener.observe, *(p.observe for p in everybody)]
            hears = [p for p in everybody if "state" not in getattr(p, "ignores", ())]
            of_state = [listener.observe, *(p.observe for p in hears)]
        for observe in of_state if event.kind == "state" else observers:
            observe(event)
    everybody = (*(p for _, own_ in processes.values() for p in own_), *for_all)
    claims, echoed = _found(everybody)
    told = Vocabulary(calls=frozenset(w for p in everybody for w in getattr(p, "words", tuple)()))
    return Proposed(
        claims=claims,
        echoed=echoed,
        vocabulary=reduce(joined, (ear.words() for ear, _ in processes.values()), told),
        events=events,
        steps=max(steps.values(), default=0),
        skipped=getattr(source, "skipped", 0),  # a source in memory has no lines
    )


def _found(proposers: Iterable[Proposer]) -> tuple[dict[str, Hypothesis], frozenset[str]]:
    proposed: dict[str, Hypothesis] = {}
    echoed: dict[str, Hypothesis] = {}
    for proposer in proposers:
        proposed.update(map(_keyed, proposer.hypotheses()))
        echoed.update(map(_keyed, getattr(proposer, "echoes", tuple)()))
    return {**echoed, **proposed}, frozenset(echoed.keys() - proposed.keys())


def _keyed(claim: Hypothesis) -> tuple[str, Hypothesis]:
    """A claim and its key. Its parameters are as a file gives them back: lists, keys sorted."""
    key = key_of(claim)
    params = orjson.loads(key.partition(" ")[2])
    return key, Hypothesis(relation=claim.relation, params=params)
