"""The relation *sharing*: names that stand for one tensor, and names that never do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincheck.relations.base import RelationBase
from traincheck.relations.phrasing import in_program, names_text
from traincheck.relations.sharing.decider import SharingDecider
from traincheck.relations.sharing.proposer import APART, OWN, SharingProposer
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.findings import CheckInfo
from traincheck.schema.torch_api import Families

_TIED: Mapping[str, str] = {
    "severity": "warning",
    "headline": "{variables} {is|are} one tensor with another parameter",
    "likely_cause": "Weights are tied that every reference run keeps apart, or one layer is used "
    "in several places: {observed}.",
    "fix": "Create a layer for each place ([layer] * 3 is one layer), unless weights should be "
    "tied.",
}


class Sharing(RelationBase):
    """Names that stand for one tensor, and names that never do.

    Claims:
        - These names stand for one parameter (tied weights).
        - No two names of a model stand for one parameter.
        - Every parameter that an optimizer updates belongs to a model.

    Example:
        ``In train.py, Lm.embed.weight and Lm.head.weight are one tensor.`` It breaks when loading
        or converting replaces one of them, in the first step that ends with two tensors.

    Evidence:
        One example for each training step. Tensors are compared as objects, never by content or
        address, as another tensor may take an address. A name that no longer exists proves nothing.

    Chance:
        A coin for each step.

    Not claimed:
        - That buffers, gradients or views share memory.
        - Anything of another program, or of a second model of a class.
    """

    name = "sharing"

    def proposer(self) -> SharingProposer:
        return SharingProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> SharingDecider:
        return SharingDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        is_own = claim.params.get("is") == OWN
        return Needs(
            states=frozenset({"parameter@new"}),
            calls=frozenset({Families.OPTIMIZER_STEP} if is_own else ()),
            kinds=frozenset({"mark", "optimizer", "step"}),
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        if "names" in params:
            text = f"{names_text(params['names'])} are one tensor"
        elif params["is"] == APART:
            text = f"No two parameters of {params['model']} are one tensor"
        else:
            text = "Every parameter that an optimizer updates belongs to a model"
        return in_program(params, text)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Weights may well be tied that were not."""
        found = super().info(claim, check_id, text)
        return replace(found, **_TIED) if claim.params.get("is") == APART else found
