"""States of torch's generator on all ranks, compared step by step."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import BatchEvent, Event, RngEvent, StepEvent
from traincheck.schema.findings import Violation

_MOST_OPEN = 256


@dataclass(slots=True)
class Page:
    """One rank in a step. content: fingerprints of the samples in its batches."""

    content: tuple[str, ...] = ()
    state: RngEvent | None = None


class RandomStateRule(BuiltInRule):
    """Compares the steps that all ranks have ended. is_over: whether the check has finished."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        self._open: dict[int, Page] = defaultdict(Page)
        self._ended: dict[int | None, dict[int, Page]] = defaultdict(dict)
        self._ranks: set[int] = set()

    def observe(self, event: Event) -> list[Violation]:
        if self.is_over or event.step is None:
            return []
        page = self._open[event.rank]
        self._ranks.add(event.rank)
        if isinstance(event, BatchEvent):
            page.content += tuple(event.samples)
        elif isinstance(event, RngEvent):
            if event.source == "torch" and event.is_step_end:
                page.state = event
        elif isinstance(event, StepEvent):
            return self._end(event)
        return []

    @abstractmethod
    def compare(self, event: StepEvent, pages: Mapping[int, Page]) -> list[Violation]:
        """Return the violations of a step that all ranks have ended; pages: by rank."""

    def _end(self, event: StepEvent) -> list[Violation]:
        page = self._open.pop(event.rank, Page())
        if not event.recorded:
            self.is_over = True
            return []
        if not event.complete:
            return []
        pages = self._ended[event.step]
        pages[event.rank] = page
        if len(pages) < max(2, len(self._ranks)):
            self.is_over = len(self._ended) > _MOST_OPEN
            return []
        del self._ended[event.step]
        return self.compare(event, pages)
