"""The relation *consistent*: equal on all ranks after a step, or equal to the copied model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.facts.programs import SEEN
from traincheck.relations.base import RelationBase
from traincheck.relations.consistent.decider import ConsistentDecider
from traincheck.relations.consistent.kinds import (
    CALLS,
    MOMENTS,
    NORMS,
    RECEIVED,
    SHAPES,
    WRAPPED,
)
from traincheck.relations.consistent.messages import text_of
from traincheck.relations.consistent.proposer import ConsistentProposer
from traincheck.relations.phrasing import (
    SEVERAL_RANKS,
)
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN, Families


class Consistent(RelationBase):
    """Equal on all ranks after a step, or equal to the copied model.

    Claims:
        - After every training step, all parameters (or buffers, or optimizer state) under a place
          of a model have the same content on all ranks.
        - In any program, the parameters of a model in DistributedDataParallel do so.
        - In any program, all ranks step optimizers equally often in every step, pass tensors of one
          shape to collectives, and receive the tensors that were sent.
        - All ranks run backward equally often, and clip gradients by the same norm.
        - Whenever a model that no optimizer holds changes, it is a copy of another model.

    Example:
        ``In train.py, every parameter under Net.norm is the same on all ranks after every step.``
        It breaks in the first step in which one rank clips, and the other does not.

    Evidence:
        One example for each step that every rank has ended and each variable that changed in it (at
        most eight a step), by exact fingerprints, and one counterexample for each variable that
        differs. Shards, and variables that a rank does not know, are not compared. A copy may hold
        the content that the other model had when the step began. A model is a copy if it was copied
        three times.

    Chance:
        A coin for each example.

    Not claimed:
        - Which rank is right.
        - Anything of a run with one rank.
        - Anything of ranks that are meant to diverge between two averagings.
        - How large a rank's part is.
    """

    name = "consistent"
    scope = "run"

    def proposer(self) -> ConsistentProposer:
        return ConsistentProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ConsistentDecider:
        return ConsistentDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        params = claim.params
        if "copy" in params:
            states = sampled("parameter@step")
            return Needs(states=states, kinds=frozenset({"mark", "optimizer", "step"}), exact=True)
        if params.get("of") == CALLS:
            return Needs(kinds=frozenset({"mark", "step"}))
        if params.get("of") == NORMS:
            calls = frozenset({Families.CLIP_NORM})
            return Needs(calls=calls, states=SEEN, kinds=frozenset({"mark", "step"}))
        if params.get("of") in (SHAPES, RECEIVED):
            states = frozenset({"collective@ranks"} if params["of"] == RECEIVED else ())
            return Needs(states=states, kinds=frozenset({"collective", "mark", "step"}))
        role = params["role"]
        looks = (
            sampled(f"{role}@{MOMENTS[role]}") | SEEN | ({"parameter@ranks"} & {f"{role}@ranks"})
        )
        calls = frozenset({DDP_INIT, DDP_HOOK, JOIN} if params.get("of") == WRAPPED else ())
        return Needs(
            states=frozenset(looks),
            calls=calls,
            kinds=frozenset({"mark", "step"}),
            exact=role != "parameter",
        )

    def text(self, claim: Hypothesis) -> str:
        return text_of(claim.params)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """The conditions of the claim: several ranks, or a wrapped model."""
        of = claim.params.get("of")
        if of is None:
            return claim.params
        if of == NORMS:
            return {"api": SEVERAL_RANKS, "after": Families.CLIP_NORM, **claim.params}
        program = {"program": claim.params["program"]} if "program" in claim.params else {}
        return {"api": DDP_INIT if of == WRAPPED else SEVERAL_RANKS, **program}
