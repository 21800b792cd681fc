"""The relation *consistent*: equal on all ranks after a step, or equal to what was copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.facts.programs import SEEN
from traincheck.relations.base import RelationBase
from traincheck.relations.consistent.decider import (
    CALLS,
    COUNTED,
    MOMENTS,
    NORMS,
    RECEIVED,
    SHAPES,
    WRAPPED,
    ConsistentDecider,
    ConsistentProposer,
)
from traincheck.relations.phrasing import (
    ROLE_NAMES,
    SEVERAL_RANKS,
    in_program,
    short,
)
from traincheck.schema.claims import Hypothesis, Needs, sampled
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN, Families


class Consistent(RelationBase):
    """Equal on all ranks after a step, or equal to what was copied.

    What it says:
        After every training step, all parameters (or buffers, or optimizer state) under a place of
        a model have the same content on all ranks. So do, in any program, the parameters that
        DistributedDataParallel keeps; and all ranks step optimizers equally often in every step,
        give tensors of one shape to what they do together, and get what was sent. In programs that
        were seen they run backward equally often, too. All ranks clip gradients by the same norm.
        Whenever a model that no optimizer holds changes, it is a copy of another.

    Example:
        ``In train.py, every parameter under Net.norm is the same on all ranks after every step.``
        It breaks in the first step in which one rank clips, and the other does not.

    Evidence:
        One example for each step that every rank has ended and each variable that changed in it,
        eight a step at most, by exact fingerprints; a counterexample for each that differs. Shards,
        and variables that one rank does not know, are not compared. A copy may be of what the other
        held when the step began, and counts when it was made three times.

    Chance:
        A coin for each example.

    Not said:
        Which rank is right. Anything of a run of one rank; of ranks that are meant to go apart
        between two averagings, nothing is proposed. How large a rank's part is.
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
        params = claim.params
        if "copy" in params:
            copy = params["copy"]
            said = f"Whenever {copy} changes, it is a copy of {params['source']}"
            return in_program(params, said)
        if params.get("of") == CALLS:
            said = f"All ranks call {short(COUNTED[params['call']])} equally often in every step"
            return in_program(params, said)
        if params.get("of") == SHAPES:
            return "All ranks give tensors of one shape and dtype to what they do together"
        if params.get("of") == RECEIVED:
            return "What one rank gets is what the other has sent, or holds after the same call"
        if params.get("of") == NORMS:
            said = "All ranks find the same norm of the gradients when they clip them"
            return in_program(params, said)
        if params.get("of") == WRAPPED:
            who = "parameter of a model in DistributedDataParallel"
        else:
            who = f"{ROLE_NAMES[params['role']]} under {params['under']}"
        return in_program(params, f"Every {who} is the same on all ranks after every step")

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """What a run must have to be asked: several ranks, or a model that is wrapped."""
        of = claim.params.get("of")
        if of is None:
            return claim.params
        if of == NORMS:
            return {"api": SEVERAL_RANKS, "after": Families.CLIP_NORM, **claim.params}
        program = {"program": claim.params["program"]} if "program" in claim.params else {}
        return {"api": DDP_INIT if of == WRAPPED else SEVERAL_RANKS, **program}
