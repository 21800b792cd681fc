"""Decide whether ranks are consistent, and models with their copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.distributed.collectives import Collectives, Meeting
from traincheck.facts.distributed.rank_steps import Key
from traincheck.facts.distributed.ranks import RankSteps, RunStep
from traincheck.facts.programs import RunProgram
from traincheck.relations.base import SATISFIED
from traincheck.relations.consistent.kinds import (
    CALLS,
    COUNTED,
    MOMENTS,
    NORMS,
    RECEIVED,
    SHAPES,
    WRAPPED,
    are_close,
    exchanged,
)
from traincheck.relations.consistent.messages import (
    counts_differ,
    exchange_differs,
    norms_differ,
    not_copied,
    ranks_differ,
)
from traincheck.relations.consistent.target_networks import CopyTracker
from traincheck.relations.subtrees import matcher
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Example

_MOST_COUNTED = 8  # variables of one step that count as examples


class ConsistentDecider:
    """Decides when the last rank has ended a step; for copies, when each process has."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            is_of_ranks = params.get("role") in MOMENTS and ("under" in params or "of" in params)
            is_of_ranks |= params.get("of") == CALLS and params.get("call") in COUNTED
            is_of_ranks |= params.get("of") in (SHAPES, RECEIVED, NORMS)
            if not is_of_ranks and not ("copy" in params and "source" in params):
                raise ValueError(f"nothing is known of {dict(params)}")
        self._program = RunProgram(self._claims)
        self._steps = RankSteps(counts_all=True)
        self._collectives = Collectives()
        self._has_copies = any("copy" in params for params in self._claims)
        self._copies: dict[tuple[int, str], CopyTracker] = defaultdict(CopyTracker)

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        self._program.observe(event)
        found: list[tuple[int, Example]] = []
        if self._has_copies and event.step is not None:
            copies = self._copies[event.rank, event.stream.partition("-")[0]]
            if isinstance(event, StepEvent):
                found += self._of_copies(copies, event)
                copies.turn(event)
            else:
                copies.observe(event)
        self._collectives.observe(event)
        for met in self._collectives.met:
            found += self._of_exchange(met)
        self._steps.observe(event)
        for step in self._steps.ready:
            if step.is_judged:
                found += self._of_ranks(step)
                found += self._of_norms(step)
            if step.is_complete:
                found += self._of_calls(step)
        return found

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: a step that some rank has not ended proves nothing."""
        return ()

    def _of_ranks(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if "role" not in params or not self._program.fits(params):
                continue
            same = 0
            for key in _keys(params, step):
                others = step.compare(key)
                if others:
                    yield index, ranks_differ(key[1], others, step)
                same += others == []
            yield from [(index, SATISFIED)] * min(same, _MOST_COUNTED)

    def _of_calls(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            if params.get("of") == CALLS and self._program.fits(params):
                counts = {rank: c.get(params["call"], 0) for rank, c in step.counters.items()}
                if len(set(counts.values())) > 1:
                    yield index, counts_differ(COUNTED[params["call"]], counts, step)
                elif any(counts.values()):
                    yield index, SATISFIED

    def _of_norms(self, step: RunStep) -> Iterator[tuple[int, Example]]:
        clipped = step.clipped()
        for index, params in enumerate(self._claims):
            if params.get("of") == NORMS and self._program.fits(params):
                for norms in clipped:
                    yield index, SATISFIED if are_close(norms) else norms_differ(norms, step)

    def _of_exchange(self, met: Meeting) -> Iterator[tuple[int, Example]]:
        pairs = exchanged(met)
        for index, params in enumerate(self._claims):
            values = pairs.get(params.get("of", ""))
            if values is not None:
                held = values[0] == values[1]
                yield index, SATISFIED if held else exchange_differs(params["of"], met.pair, values)

    def _of_copies(self, copies: CopyTracker, event: StepEvent) -> Iterator[tuple[int, Example]]:
        changed = copies.changed() if event.recorded and event.complete else []
        for index, params in enumerate(self._claims):
            if params.get("copy") not in changed or not self._program.fits(params):
                continue
            names = copies.differing(params["copy"], params["source"])
            for name in names or ():
                yield index, not_copied(name, params["source"], event)
            if names == []:
                yield index, SATISFIED


def _keys(params: Mapping[str, Any], step: RunStep) -> list[Key]:
    role = params["role"]
    if params.get("of") == WRAPPED:
        wrapped = step.wrapped
        return sorted(key for key in step.changed if key[0] == role and key[1] in wrapped)
    matches = matcher(params["under"]).match
    return sorted(key for key in step.changed if key[0] == role and matches(key[1]))
