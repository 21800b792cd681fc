"""Steps in a row without an update, for TC202."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.schema.findings import Violation


@dataclass(slots=True)
class Lapse:
    """Steps in a row without an update.

    Attributes:
        count: the number of steps.
        first: violations of the first step.
        latest: violations of the last step.
    """

    count: int = 0
    first: list[Violation] = field(default_factory=list)
    latest: list[Violation] = field(default_factory=list)

    def add(self, found: list[Violation], needed: int) -> list[Violation]:
        """Add a step and return the violations that are certain now.

        Args:
            found: the violations of the step.
            needed: number of steps that prove the fault while the run goes on.
        """
        self.count += 1
        if self.count >= needed:
            return found if self.count > needed else self.first + found
        self.first, self.latest = self.first or found, found
        return []

    def ends(self, least: int, most: int) -> list[Violation]:
        """The violations that the end of a run proves.

        Args:
            least: number of steps that prove the fault at the end.
            most: number of steps after which it was already reported.
        """
        return self.first + self.latest if least <= self.count < most else []
