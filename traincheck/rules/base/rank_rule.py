"""Rules that judge complete steps of all ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from traincheck.facts.distributed.ranks import RankSteps, RunStep
from traincheck.facts.provider import Fact, Facts
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Violation


class RankRule(BuiltInRule):
    """Judges complete steps of all ranks."""

    uses: ClassVar[Sequence[type[Fact]]] = (RankSteps,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))

    def bind(self, facts: Facts) -> None:
        self._steps = facts.of(RankSteps)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent):
            return ()
        return [found for step in self._steps.ready for found in self.judge(step)]

    @abstractmethod
    def judge(self, step: RunStep) -> Sequence[Violation]:
        """Return the violations that a step of all ranks proves."""
