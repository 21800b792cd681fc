"""An optimizer steps in one run only."""

from __future__ import annotations

from traincheck.diff.causes.reading import updates
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence


def explain(evidence: Evidence) -> Explanation | None:
    """No optimizer steps in one of the runs."""
    if evidence.item.is_opening or evidence.item.what == "setting":
        return None
    steps = updates(evidence.a), updates(evidence.b)
    if bool(steps[0]) == bool(steps[1]):
        return None
    side = "A" if not steps[0] else "B"
    return Explanation(
        code="step-skipped",
        text=f"no optimizer steps in {side}: a GradScaler skipped the step, or it was left out",
        fix="Compare the scale of the scaler in both runs; restore scaler.state_dict().",
    )
