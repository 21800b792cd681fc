"""First pass: which hypotheses are worth testing. Decides nothing about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from traincheck.relations._variables import is_judged
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import StepEvent
from traincheck.schema.protocols import EventSource, Proposer, Relation, is_for_run


def key_of(claim: Hypothesis) -> str:
    """Equal for equal claims, and a stable order among different ones."""
    params = orjson.dumps(dict(claim.params), option=orjson.OPT_SORT_KEYS).decode()
    return f"{claim.relation} {params}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What one pass over a run gave.

    steps: complete ones, of the process that has most. skipped: lines that could not be read.
    """

    claims: Mapping[str, Hypothesis]
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
    processes: dict[tuple[int, str], list[Proposer]] = {}
    own, shared = by_scope(relations)
    for_all = [shared[name].proposer() for name in sorted(shared)]
    last: tuple[int, str] | None = None
    current: list[Proposer] = []
    steps: Counter[tuple[int, str]] = Counter()
    events = 0
    for event in source.events():
        events += 1
        if isinstance(event, StepEvent):
            steps[event.rank, event.stream] += is_judged(event)
        at = (event.rank, event.stream)
        if at != last:
            last = at
            process = (event.rank, event.stream.partition("-")[0])
            if process not in processes:
                processes[process] = [own[name].proposer() for name in sorted(own)] + for_all
            current = processes[process]
        for proposer in current:
            proposer.observe(event)
    found = {}
    for proposers in processes.values():
        for proposer in proposers:
            for claim in proposer.hypotheses():
                found[key_of(claim)] = claim
    return Proposed(
        claims=found,
        events=events,
        steps=max(steps.values(), default=0),
        skipped=getattr(source, "skipped", 0),  # a source in memory has no lines
    )
