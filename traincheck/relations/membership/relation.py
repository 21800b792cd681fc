"""The relation *membership*: which variables a model has, are trained, and an optimizer holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traincheck.relations.base import RelationBase
from traincheck.relations.members import (
    DTYPE,
    FREE,
    FROZEN,
    HELD,
    ONCE,
    REACHED,
    SPARSE,
    STILL,
    TRAINABLE,
    UNMOVED,
    Lookups,
    MembershipProposer,
)
from traincheck.relations.membership.decider import MembershipDecider
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.findings import CheckInfo
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_SHOWN = 6  # names in a sentence
_TEXTS = {
    TRAINABLE: "Every parameter under {under} requires grad",
    FROZEN: "Every parameter under {under} is frozen (requires_grad is False)",
    STILL: "No training step changes a parameter under {under}",
    HELD: "Every parameter under {under} is held by an optimizer",
    FREE: "No optimizer holds a parameter under {under}",
    SPARSE: "Every embedding under {under} has sparse gradients",
    DTYPE: "Every {role} under {under} is of dtype {dtype}",
    ONCE: "No step of training updates a parameter under {under} by two optimizers",
}


class Membership(RelationBase):
    """Which variables a model has, which of them are trained, and which an optimizer holds.

    What it says:
        Every parameter under a place of a model is trained (requires_grad), is frozen, is never
        changed by a training step, is held by an optimizer, by none, or is not updated by two. Its
        embeddings have sparse gradients. Parameters, or buffers, are kept in a dtype. A model has
        parameters, or buffers, of these names. And of any program: a parameter that gets a gradient
        is held by an optimizer, and no optimizer changes one that is frozen.

    Example:
        ``In train.py, every parameter under Classifier.backbone.stages.[0-1] is frozen.`` It breaks
        when the function that freezes them is not called, in the first step that trains them.

    Evidence:
        One example for each place and training step, or for each frozen variable, eight a step at
        most; a counterexample for each variable of the
        place that is otherwise. Places are the widest whose variables all are alike, so a large
        model gives few. Of a model whose flags, or whose optimizer, change in the course of
        training nothing is claimed. Loss networks, and averages that no optimizer holds, are left
        out; so is a parameter whose model is not the one that trains. One that is frozen in a step
        counts as such in it where the next does not train it again. Of a model that is cast
        while it trains no dtype is claimed, nor is one of whole numbers.

    Chance:
        A coin for each step.

    Not said:
        In which group, or with which options, an optimizer holds a parameter. All but the last two
        claims are kept to programs of the same name.
    """

    name = "membership"

    def proposer(self) -> MembershipProposer:
        return MembershipProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> MembershipDecider:
        return MembershipDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark", "step", "optimizer"})  # the mark tells the program
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
        params = claim.params
        what = params.get("is")
        if what == REACHED:
            return "Every parameter that gets a gradient is held by an optimizer"
        if what == UNMOVED:
            return "No optimizer changes a parameter that is frozen (requires_grad is False)"
        if what is not None:
            return in_program(params, _TEXTS[what].format(**params))
        start = len(params["model"]) + 1
        names = [pattern[start:] for pattern in params["has"]]
        said = f"The {params['role']}s of {params['model']} are {joined(names, _SHOWN)}"
        return in_program(params, said)

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Another dtype than that of the reference may be meant, and so may a frozen part."""
        found = super().info(claim, check_id, text)
        is_choice = claim.params.get("is") in (DTYPE, TRAINABLE)
        return replace(found, severity="warning") if is_choice else found
