"""The optimizer state differs after an update from the same gradients."""

from __future__ import annotations

from traincheck.diff.causes.reading import elsewhere
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence, Side


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is a state of an optimizer, and no setting."""
    if evidence.item.what == "setting" or evidence.item.is_opening:
        return None
    orders = [_orders(side) for side in (evidence.a, evidence.b)]
    if orders[0] and orders[1] and orders[0] != orders[1] and _same_sets(*orders):
        found = elsewhere(evidence, evidence.item.b, evidence.item.name)
        return Explanation(
            code="parameter-order",
            text="the optimizer holds the parameters in another order, so loaded states belong to "
            "other parameters",
            fix="Build the optimizer from list(model.parameters()), not from a set.",
            details=(f"first parameter: {_first(orders[0])} in A, {_first(orders[1])} in B",)
            + ((found,) if found else ()),
        )
    if evidence.resume is not None and not any(load.owner for load in evidence.b.facts.loads):
        return Explanation(
            code="optimizer-not-restored",
            text="the state of the optimizer was not restored: it begins with none",
            fix="Save optimizer.state_dict() in the checkpoint and load it.",
        )
    found = elsewhere(evidence, evidence.item.b, evidence.item.name)
    if found:
        return Explanation(
            code="state-of-another",
            text="the state is that of another parameter or step",
            details=(found,),
        )
    return None


def _orders(side: Side) -> list[list[str]]:
    """The names in each group of the first optimizer."""
    events = side.facts.optimizers
    return [list(group.params) for group in events[-1].groups] if events else []


def _same_sets(a: list[list[str]], b: list[list[str]]) -> bool:
    return [sorted(group) for group in a] == [sorted(group) for group in b]


def _first(order: list[list[str]]) -> str:
    return next((group[0] for group in order if group), "none")
