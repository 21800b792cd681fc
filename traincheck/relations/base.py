"""What most relations say alike of their claims. One that says it differently overrides it."""

from __future__ import annotations

from typing import ClassVar

from traincheck.schema.claims import Hypothesis
from traincheck.schema.findings import CheckInfo


class UsualRelation:
    """A coin for each example, no claim that implies another one, one severity for all."""

    name: str
    severity: ClassVar[str] = "error"

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return float(0.5**positive)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Only itself."""
        return claim == other

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=self.severity, title=text
        )
