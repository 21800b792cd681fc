"""Rules that judge single events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class EventRule(BuiltInRule):
    """Judges each event by itself, and remembers at most a little."""

    def observe(self, event: Event) -> Sequence[Violation]:
        return self.judge(event)

    @abstractmethod
    def judge(self, event: Event) -> Sequence[Violation]:
        """Violations that an event proves."""
