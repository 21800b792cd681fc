"""One generator is some draws ahead of the other: how many, and since when."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.draws import distance
from traincheck.diff.evidence import Evidence
from traincheck.schema.events import RngEvent

_FIX = (
    "Draw the same numbers in both runs before this point, or give the loader and the "
    "augmentation generators that nothing else uses."
)
_FIX_RESUME = (
    "Save torch.get_rng_state() (and those of NumPy, Python and CUDA) in the checkpoint and set "
    "them before the loop, or give the loader a generator and save that."
)


def explain(evidence: Evidence) -> Explanation | None:
    """The states of a generator differ: step one until it reaches the other."""
    item = evidence.item
    if item.what != "state" or not isinstance(item.a, RngEvent):
        return None
    source = item.name.removesuffix(" generator")
    ahead = distance(source, item.a.state, item.b.state)
    details = tuple(_inits(evidence))
    if evidence.resume is not None:
        text = f"the state of the {source} generator was not restored: {_ahead(ahead)}"
        return Explanation(code="generator-not-restored", text=text, fix=_FIX_RESUME)
    text = f"one run draws more random numbers before this point: {_ahead(ahead)}"
    return Explanation(code="draws", text=text, fix=_FIX, details=details)


def _ahead(draws: int | None) -> str:
    if draws is None:
        return "neither state is reached from the other within a million draws"
    if not draws:
        return "a normal number waits in one state only"
    number = f"{abs(draws):,} draw" + ("" if abs(draws) == 1 else "s")
    return f"B is {number} ahead of A" if draws > 0 else f"A is {number} ahead of B"


def _inits(evidence: Evidence) -> list[str]:
    """The calls that initialize parameters on one side only."""
    mine = [call.api.rpartition(".")[2] for call in evidence.a.view.inits]
    yours = [call.api.rpartition(".")[2] for call in evidence.b.view.inits]
    if len(mine) == len(yours):
        return []
    return [f"parameters are initialized by {len(mine)} calls in A and by {len(yours)} in B"]
