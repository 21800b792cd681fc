"""The relation *membership*: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traincheck.relations.base import RelationBase
from traincheck.relations.membership.decider import MembershipDecider
from traincheck.relations.membership.messages import text_of
from traincheck.relations.membership.places import (
    DTYPE,
    HELD,
    ONCE,
    REACHED,
    SPARSE,
    STILL,
    TRAINABLE,
    UNMOVED,
    Lookups,
)
from traincheck.relations.membership.proposer import MembershipProposer
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.findings import CheckInfo
from traincheck.schema.torch_api import Families


class Membership(RelationBase):
    """Which variables a model has, which are trained, and which an optimizer holds.

    Claims:
        - Every parameter under a place of a model is trained (requires_grad), or is frozen, or is
          never changed by a training step.
        - Every parameter under a place is held by an optimizer, or by none, or is not updated by
          two.
        - The embeddings under a place have sparse gradients.
        - The parameters, or buffers, under a place have a dtype.
        - A model has parameters, or buffers, of these names.
        - In any program, an optimizer holds every parameter that gets a gradient, and no optimizer
          changes a frozen parameter.

    Example:
        ``In train.py, every parameter under Classifier.backbone.stages.[0-1] is frozen.`` It breaks
        when the function that freezes them is not called, in the first step that trains them.

    Evidence:
        One example for each place and training step, or for each frozen variable (at most eight a
        step), and one counterexample for each variable that breaks the claim. Places are as wide as
        possible, so a large model gives few. Left out are:
        - models whose flags or optimizer change during training;
        - loss networks, averages that no optimizer holds, and parameters of a model that is not
          trained;
        - the dtype of a model that is cast while it trains, and whole numbers;
        - a parameter that is frozen in one step only: the next step trains it again.

    Chance:
        A coin for each step.

    Not claimed:
        - The group or the options with which an optimizer holds a parameter.
        - Anything about other programs, except the last claim.
    """

    name = "membership"

    def proposer(self) -> MembershipProposer:
        return MembershipProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> MembershipDecider:
        return MembershipDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark", "step", "optimizer"})  # the mark names the program
        what = claim.params.get("is")
        if what in (None, DTYPE):
            return Needs(states=frozenset({f"{claim.params['role']}@new"}), kinds=kinds)
        states = (
            sampled("parameter@step") if what in (STILL, UNMOVED, REACHED) else {"parameter@new"}
        )
        if what in (REACHED, HELD, TRAINABLE):
            states |= sampled("gradient@backward")
        calls = frozenset({Families.OPTIMIZER_STEP} if what in (ONCE, REACHED, UNMOVED) else ())
        if what == SPARSE:
            calls = Lookups.CALLS | Lookups.MODULES
        if what in (STILL, UNMOVED):
            kinds |= {"checkpoint"}
        return Needs(states=frozenset(states), calls=calls, kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return text_of(claim.params)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Another dtype may be intended, and so may a frozen part."""
        found = super().info(claim, check_id, text)
        is_choice = claim.params.get("is") in (DTYPE, TRAINABLE)
        return replace(found, severity="warning") if is_choice else found
