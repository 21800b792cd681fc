"""The relation *count*: how often something is called in every training step of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.relations.base import RelationBase
from traincheck.relations.count.decider import CountDecider
from traincheck.relations.count.proposer import LATER, CountProposer, word
from traincheck.relations.count.windows import (
    COLLECTIVE,
    DETACH,
    ESSENTIAL,
    FRAME,
    often_of,
    subject_of,
)
from traincheck.relations.input_output.messages import CUT
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, within_modules
from traincheck.schema.findings import CheckInfo
from traincheck.schema.torch_api import COMPILED, Families


class Count(RelationBase):
    """In every training step, B is called so often.

    What it says:
        B is a landmark of the loop (backward, the step of an optimizer or scheduler, zero_grad,
        clipping), a class of modules, a function that the program itself calls, or what ranks do
        together. It is called exactly n times, n times for each backward, a multiple of n times,
        or at least so often; a scheduler, perhaps, not before the first update.

    Example:
        ``In train.py, torch.set_rng_state is called exactly 2 times in every training step.`` It
        breaks when a context is not entered, a layer is left out, an optimizer steps twice.

    Evidence:
        One example for each window from one update to the next, but for the first if calls come
        between updates and forwards, or if there are more of something than the loop has: models
        are tried out before it. Calls with gradients off, or while a model is evaluated, do
        not count. No example: steps that were not recorded, are unfinished or were skipped by a
        gradient scaler, and optimizers that call a closure again and again. A window with too few
        backwards (the last of an epoch may be short) counts only when one of another iteration
        follows it, and so it is with what is called less in proportion. Where a claim names the
        one module of its class, calls of others, which came since, are not too many; nor is a
        zero_grad that clears no gradients, which one more optimizer may bring. What is missed of an
        optimizer while others step, which never stepped beside it, counts only between two steps of
        it, or if it never steps: before and after, other models are trained. What is too many in a
        window with more forwards to a backward than others have, in which an iteration was left
        before its end, counts from eight in a row on; so does a zero_grad after a backward more.

    Chance:
        A coin for each example.

    Not said:
        Anything about other programs: loops differ in how much they accumulate and which losses
        they compute. How often is *for each backward* where it can be, and else of windows with no
        more backwards than were seen. Functions that only modules of libraries call are theirs.
    """

    name = "count"

    def proposer(self) -> CountProposer:
        return CountProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> CountDecider:
        return CountDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        api = claim.params["api"]
        is_call = not api.startswith(COLLECTIVE)
        is_schedule = api == Families.SCHEDULER_STEP
        frame = FRAME | ({Families.SCHEDULER_CREATED} if is_schedule else set())
        kinds = {"mark", "step"} | (set() if is_call else {"collective"})
        if "owner" in claim.params:
            kinds.add("optimizer")  # which one steps in the place of another
        kinds |= {"batch"} if api == Families.BACKWARD else set()
        return Needs(
            calls=frame | within_modules(COMPILED, *[api] * is_call), kinds=frozenset(kinds)
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        window = "for each backward" if params["per"] == Families.BACKWARD else "every"
        often = f"{often_of(params)} {window}".replace("every", "in every training step")
        late = ", after the update" if params.get("late") else ""
        return in_program(params, f"{subject_of(params)} is called {often}{late}")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """An exact number implies its divisors and what is less; a multiple implies its divisors.

        What holds with however many backwards holds with few.
        """
        mine: dict[str, Any]
        its: dict[str, Any]
        mine, its = dict(claim.params), dict(other.params)
        forms = mine.pop("form"), its.pop("form")
        times, theirs = mine.pop("times"), its.pop("times")
        few = its.pop("backwards", None)
        is_wider = mine.pop("backwards", few) == few
        for params in (mine, its):
            params.pop("module", None)  # says whose it is, where there is one
        if claim.relation != other.relation or mine != its or not is_wider:
            return False
        if forms[1] == "least":
            return bool(times >= theirs)
        if forms[1] == "multiple":
            return forms[0] != "least" and bool(times % theirs == 0)
        return forms[0] == "exactly" and bool(times == theirs)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run with no more than one update says nothing, nor does one without the optimizer."""
        params = claim.params
        whose = {"api": word(params["api"], params["owner"])} if "owner" in params else {}
        return {"program": params["program"], **whose, "outer": LATER}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """A missing update is an error; clipping, a schedule, another function may be meant."""
        severity = "error" if claim.params["api"] in ESSENTIAL else "warning"
        told = CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=severity, title=text
        )
        return replace(told, **CUT) if claim.params["api"] == DETACH else told
