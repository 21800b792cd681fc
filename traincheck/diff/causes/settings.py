"""A setting of an optimizer differs: learning rate, betas, weight decay."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is a setting."""
    item = evidence.item
    if item.what != "setting":
        return None
    name = item.name.partition(".")[2]
    if name == "class":
        return Explanation(
            code="optimizer-class", text=f"another optimizer: {item.a} in A, {item.b} in B"
        )
    if name.startswith("lr"):
        if evidence.resume is not None:
            return Explanation(
                code="schedule-not-restored",
                text="the learning rate is not that of the run that goes on: the state of the "
                "scheduler was not restored",
                fix="Save scheduler.state_dict() in the checkpoint, and load it.",
            )
        return Explanation(
            code="schedule", text=f"another learning rate or schedule: {item.a} in A, {item.b} in B"
        )
    return Explanation(code="setting", text=f"another {name}: {item.a} in A, {item.b} in B")
