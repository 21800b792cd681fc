"""Rules that judge single events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class EventRule(BuiltInRule):
    """Judges each event on its own, with little or no state."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.observe = cls.judge  # type: ignore[method-assign]  # saves a call for each event

    def observe(self, event: Event) -> Sequence[Violation]:
        return self.judge(event)

    @abstractmethod
    def judge(self, event: Event) -> Sequence[Violation]:
        """Return the violations that an event proves."""
