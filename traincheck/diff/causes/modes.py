"""A module runs in training mode in one run and in evaluation mode in the other."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence


def explain(evidence: Evidence) -> Explanation | None:
    """The mode of the first module that differs is another one."""
    item = evidence.item
    if item.what != "mode":
        return None
    side = "B" if item.b == "eval" else "A"
    return Explanation(
        code="mode",
        text=f"the model is in evaluation mode in {side}: a model.eval() without model.train() "
        "after it, or the other way round",
        fix="Call model.train() before the training forward passes, after each evaluation.",
        where=item.where,
    )
