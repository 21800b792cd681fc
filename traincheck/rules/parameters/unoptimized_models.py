"""Whole models that get gradients in each step, which no optimizer uses and no code clears."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import ClassVar

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.parameters.master_weights import are_masters
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

UNHELD: Needs = (
    DISCOVERY
    | GRADIENTS
    | Needs(calls=frozenset({Families.MODULE}), kinds=frozenset({"checkpoint"}))
)

_MASTERS = (
    "{label} holds copies of {root}, e.g. float32 masters, and nothing clears the gradients of "
    "{root} itself: each backward() adds to the previous gradients."
)
_CLEAR = "Call zero_grad() of {root} once in every iteration, before backward()."


class UnoptimizedModelRule(StepRule):
    """Counts the steps in a row in which all parameters of a model get unused gradients.

    Attributes:
        symptom: the symptom of a violation.
        is_loaded: whether the rule covers models whose weights may have been loaded, or the others.
        steps: steps in a row that are required for a violation.
    """

    symptom: ClassVar[Symptom]
    is_loaded: ClassVar[bool]
    steps: ClassVar[int]
    needs = UNHELD

    def __init__(self) -> None:
        super().__init__()
        self._streaks: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or self.ledger.has_gap:
            self._streaks.clear()
            return []
        if not facts.updates():
            return []
        called = {forward.path for forward in facts.forwards if forward.is_training}
        held = self.ledger.held()
        cleared = frozenset[int]().union(*(moment.cleared for moment in facts.moments))
        owned: dict[str, set[int]] = defaultdict(set)
        for identity, parameter in self.ledger.parameters.items():
            owned[parameter.root].add(identity)
        streaks = {}
        for root in sorted(called & owned.keys()):
            self.triggered += 1
            if owned[root] <= facts.reached and owned[root].isdisjoint(held):
                known = self._streaks.get(root)
                if known is None or not owned[root].isdisjoint(cleared):
                    known = Streak(facts.event.step)  # the first gradients also count as cleared
                known.count += 1
                streaks[root] = known
        self._streaks = streaks
        return [
            self._violation(root, streak, facts)
            for root, streak in streaks.items()
            if streak.count == self.steps and self._may_be_loaded(root) is self.is_loaded
        ]

    def _may_be_loaded(self, root: str) -> bool:
        return self.ledger.has_read or root in self.ledger.loaded

    def _violation(self, root: str, streak: Streak, facts: StepFacts) -> Violation:
        calls = [forward.call for forward in facts.forwards if forward.path == root]
        names = [p.name for p in self.ledger.parameters.values() if p.root == root]
        held = ", ".join(holder.label for holder in self.ledger.holders.values())
        found = proof(
            (self.code, self.symptom),
            facts,
            step=streak.first,
            subject=Subject(module=root),
            message=f"{root} gets gradients ({joined(names)}), but no optimizer holds any of it",
            expected=f"an optimizer holds {root}, or it gets no gradients",
            observed=f"gradients of {joined(names)}; the optimizers are {held}",
            evidence=(calls[0], facts.updates()[0].call),
        )
        fed = (h.label for h in self._fed(facts) if are_masters(self.ledger, h, root))
        masters = next(fed, None)
        if masters is None:
            return found
        cause, fix = (text.format(root=root, label=masters) for text in (_MASTERS, _CLEAR))
        return replace(found, likely_cause=cause, fix=fix)

    def _fed(self, facts: StepFacts) -> list[Holder]:
        """Optimizers that had gradients to apply."""
        owners = {moment.call.owner for moment in facts.updates() if moment.applied}
        return [holder for owner, holder in self.ledger.holders.items() if owner in owners]
