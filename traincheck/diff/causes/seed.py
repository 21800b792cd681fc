"""Another seed, or a seed on one side only."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence


def explain(evidence: Evidence) -> Explanation | None:
    """The first generator that differs was seeded with another number."""
    item = evidence.item
    if item.what not in ("seed", "presence"):
        return None
    source = item.name.removesuffix(" generator")
    if item.what == "presence":
        side = "A" if item.b is None else "B"
        text = f"{source} is seeded in {side} only, so the other run begins with any state"
    else:
        text = f"another seed: {source} gets {item.a.seed} in A and {item.b.seed} in B"
    return Explanation(
        code="seed", text=text, fix="Give both runs the same seed.", where=item.where
    )
