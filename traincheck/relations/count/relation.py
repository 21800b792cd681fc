"""The relation *count*: how often something is called in every training step of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.relations.base import RelationBase
from traincheck.relations.count.decider import CUT, CountDecider, often_of, subject_of
from traincheck.relations.count.proposer import (
    COLLECTIVE,
    DETACH,
    ESSENTIAL,
    FRAME,
    LATER,
    CountProposer,
    word,
)
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, within_modules
from traincheck.schema.torch_api import COMPILED, Families


class Count(RelationBase):
    """In every training step, B is called n times.

    Claims:
        - B is a landmark of the loop (backward, the step of an optimizer or scheduler, zero_grad,
          clipping), a class of modules, a function that the program itself calls, or a collective
          operation.
        - It is called exactly n times, n times for each backward, a multiple of n times, or at
          least n times.
        - A scheduler is not stepped before the first update.

    Example:
        ``In train.py, torch.set_rng_state is called exactly 2 times in every training step.`` It
        breaks when a context is not entered, a layer is left out, or an optimizer steps twice.

    Evidence:
        One example for each window from one update to the next. Special cases:
        - The first window does not count if calls come between updates and forwards, or if it has
          more calls than the loop: models may be tried out before the loop.
        - Calls with gradients off, or while a model is evaluated, do not count.
        - Steps that were not recorded, are unfinished or were skipped by a gradient scaler give no
          example. Neither do optimizers that call a closure several times.
        - A window with too few backwards may be the last of an epoch. It counts only when a window
          of another iteration follows it. The same holds for calls that are fewer in proportion.
        - If a claim names the one module of its class, calls of modules that were added since are
          not too many. Neither is a zero_grad that clears no gradients: another optimizer may add
          one.
        - While others step that never stepped beside it, an optimizer may train another model.
          Calls that are missing then count only between two of its steps, or if it never steps.
        - A window with more forwards than others may hold an iteration that was left before its
          end. Its extra calls count from eight such windows in a row. So does a zero_grad after an
          extra backward.

    Chance:
        A coin for each example.

    Not claimed:
        - Anything about other programs: loops differ in accumulation and losses.
        - Counts in windows with more backwards than were seen, unless they are *for each backward*.
        - Functions that only modules of libraries call.
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
            kinds.add("optimizer")  # to see which one replaces another
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

        A claim for any number of backwards implies a claim for few.
        """
        mine: dict[str, Any]
        its: dict[str, Any]
        mine, its = dict(claim.params), dict(other.params)
        forms = mine.pop("form"), its.pop("form")
        times, theirs = mine.pop("times"), its.pop("times")
        few = its.pop("backwards", None)
        is_wider = mine.pop("backwards", few) == few
        for params in (mine, its):
            params.pop("module", None)  # it only names the module, where there is one
        if claim.relation != other.relation or mine != its or not is_wider:
            return False
        if forms[1] == "least":
            return bool(times >= theirs)
        if forms[1] == "multiple":
            return forms[0] != "least" and bool(times % theirs == 0)
        return forms[0] == "exactly" and bool(times == theirs)

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """Runs with only one update, or without the optimizer, prove nothing."""
        params = claim.params
        whose = {"api": word(params["api"], params["owner"])} if "owner" in params else {}
        return {"program": params["program"], **whose, "outer": LATER}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """A missing update is an error. Clipping, schedules and functions may change on purpose."""
        api = claim.params["api"]
        severity = "error" if api in ESSENTIAL else "warning"
        return {"severity": severity, **(CUT if api == DETACH else {})}
