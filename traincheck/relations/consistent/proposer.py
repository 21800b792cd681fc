"""Propose what was the same on all ranks, and models that were copies of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from traincheck.facts.distributed.collectives import Collectives
from traincheck.facts.distributed.rank_steps import Key
from traincheck.facts.distributed.ranks import RankSteps, RunStep
from traincheck.facts.programs import RunProgram
from traincheck.relations.base import ProposerBase
from traincheck.relations.consistent.kinds import (
    CALLS,
    MOMENTS,
    NORMS,
    WRAPPED,
    are_close,
    exchanged,
)
from traincheck.relations.consistent.target_networks import CopyFinder
from traincheck.relations.subtrees import fold
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event


class ConsistentProposer(ProposerBase):
    """Compares all variables on all ranks, and models with those that are trained."""

    def __init__(self) -> None:
        self._program = RunProgram()
        self._steps = RankSteps(counts_all=True)
        self._same: dict[Key, bool] = {}
        self._collectives = Collectives()
        self._exchanged: set[str] = set()
        self._wrapped = False
        self._ranks = 1
        self._clips: bool | None = None  # by the same norm
        self._finders: dict[tuple[int, str], CopyFinder] = defaultdict(CopyFinder)

    def observe(self, event: Event) -> None:
        self._program.observe(event)
        if event.step is not None:
            self._finders[event.rank, event.stream.partition("-")[0]].observe(event)
        self._collectives.observe(event)
        for met in self._collectives.met:
            self._exchanged |= {of for of, values in exchanged(met).items() if values is not None}
        self._steps.observe(event)
        for step in self._steps.ready:
            if step.is_judged:
                self._wrapped |= bool(step.wrapped)
                self._ranks = max(self._ranks, len(step.counters))
                for key in step.changed:
                    self._compare(step, key)
                for norms in step.clipped():
                    self._clips = self._clips is not False and are_close(norms)

    def _compare(self, step: RunStep, key: Key) -> None:
        if key[0] in MOMENTS and self._same.get(key, True):
            others = step.compare(key)
            if others is not None:
                self._same[key] = not others

    def hypotheses(self) -> Iterator[Hypothesis]:
        if self._wrapped:
            yield _claim({"role": "parameter", "of": WRAPPED})
        for of in sorted(self._exchanged):
            yield _claim({"of": of})
        if self._ranks > 1:
            yield _claim({"of": CALLS, "call": "optimizer_step"})
        if self._program.name is None:
            return
        base = {"program": self._program.name}
        if self._ranks > 1:  # ranks of others may accumulate unequally and exchange gradients once
            yield _claim({**base, "of": CALLS, "call": "backward"})
        if self._clips:
            yield _claim({**base, "of": NORMS})
        yield from (_claim({**base, **place}) for place in self._places())
        pairs = {pair for finder in self._finders.values() for pair in finder.pairs()}
        for copy, source in sorted(pairs):
            yield _claim({**base, "copy": copy, "source": source})

    def _places(self) -> Iterator[dict[str, str]]:
        """Where all variables of a role were the same on all ranks."""
        for role in MOMENTS:
            labels: dict[str, bool] = {}
            for (found, name), same in self._same.items():
                if found == role:
                    variable = name.partition("/")[0]
                    labels[variable] = same and labels.get(variable, True)
            for pattern, is_same in fold(labels):
                if is_same:
                    yield {"role": role, "under": pattern}


def _claim(params: dict[str, Any]) -> Hypothesis:
    return Hypothesis(relation="consistent", params=params)
