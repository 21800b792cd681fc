"""A monitor of rules that judge single events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from traincheck.schema.events import Event
from traincheck.schema.findings import Violation


class SingleEvents(ABC):
    """Judges each event by itself, and remembers at most a little."""

    def __init__(self) -> None:
        self.triggered = 0

    def observe(self, event: Event) -> Sequence[Violation]:
        return self.judge(event)

    def finish(self) -> Sequence[Violation]:
        """Nothing: what did not happen was not judged."""
        return ()

    @abstractmethod
    def judge(self, event: Event) -> Sequence[Violation]:
        """Violations that an event proves."""
