"""The loss differs, and what the model returns does not."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is in the loss."""
    item = evidence.item
    if item.what == "presence":
        return Explanation(
            code="other-loss", text="another loss function is called", where=item.where
        )
    if item.note == "argument":
        return Explanation(
            code="loss-argument",
            text=f"the loss function is given another argument: {item.name}",
            where=item.where,
        )
    if not evidence.of(Phase.FORWARD) and _outputs_unknown(evidence):
        return Explanation(
            code="forward-or-loss",
            text="the forward pass or the loss differs: outputs of modules were not recorded",
            fix="Record both runs with traincheck collect --view diff to see the first module.",
            where=item.where,
        )
    if item.name.startswith("loss of backward"):
        return Explanation(
            code="loss-scale",
            text="the loss functions agree, and backward() is given another value: it is scaled, "
            "or a term is added",
            where=item.where,
        )
    return Explanation(
        code="loss", text="the loss function computes something else", where=item.where
    )


def _outputs_unknown(evidence: Evidence) -> bool:
    """Whether no result of an outermost module has a fingerprint."""
    roots = [call for call in evidence.b.view.calls if call.root]
    return not any(b'"fingerprint"' in bytes(call.result) for call in roots)
