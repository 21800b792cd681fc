"""What the comparison of one pair of ranks has found, step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from traincheck.diff.compare import StepResult
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase

_MOST_NOTES = 5


@dataclass(slots=True)
class Tally:
    """What the comparison of one pair of ranks has found so far."""

    compared: Counter[Phase] = field(default_factory=Counter)
    unknown: Counter[Phase] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    after: int = 0
    alike_after: int = 0
    growth: dict[int, float] = field(default_factory=dict)
    first: StepResult | None = None
    evidence: Evidence | None = None

    def add(self, result: StepResult) -> None:
        """Count one step; its items are those that count."""
        self.steps += not result.is_tail
        self.compared += result.compared
        self.unknown += result.unknown
        for note in result.notes:
            if note not in self.notes and len(self.notes) < _MOST_NOTES:
                self.notes.append(note)
        if self.first is None:
            return
        self.after += not result.is_tail
        self.alike_after += not (result.items or result.is_tail)
