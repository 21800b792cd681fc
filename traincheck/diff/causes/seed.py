"""Another seed, or a seed on one side only."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.schema.events import RngEvent

_SEEDS = {
    "torch": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}


def explain(evidence: Evidence) -> Explanation | None:
    """The first generator that differs was seeded with another number."""
    item = evidence.item
    source = item.name.removesuffix(" generator")
    if item.what == "state" and isinstance(item.a, RngEvent) and item.a.moment == "start":
        return Explanation(
            code="not-seeded",
            text=f"{source} is not seeded, so each process begins in another state",
            fix=f"Seed it before the model is built: {_SEEDS.get(source, 'set its seed')}.",
        )
    if item.what not in ("seed", "presence"):
        return None
    if item.what == "presence":
        side = "A" if item.b is None else "B"
        text = f"{source} is seeded in {side} only, so the other run begins with any state"
    else:
        text = f"another seed: {source} gets {item.a.seed} in A and {item.b.seed} in B"
    return Explanation(
        code="seed", text=text, fix="Give both runs the same seed.", where=item.where
    )
