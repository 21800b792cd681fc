"""An optimizer updates copies of a model's parameters, and the model stays unchanged."""

from __future__ import annotations

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.parameters.other_tensors import are_masters
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 10


class MasterWeightsNotCopiedBack(
    StepRule, code="TC118", severity="error", aliases=("masters-not-copied-back",)
):
    """master-weights-not-copied-back: copies of the parameters are trained, not the model.

    What it checks:
        If a model gets gradients and an optimizer updates copies of its parameters instead, the
        model changes, too.

    Why it matters:
        In manual mixed precision, gradients go to float32 master weights, which the optimizer
        updates. Their values must be copied back to the model. Otherwise the masters move with the
        gradients of the initial weights, and the model that is evaluated and saved is the initial
        one.

    Fires on:
        - Ten steps in a row in which all trainable parameters of a model called in training mode
          get gradients, no optimizer holds them, and they do not change. Meanwhile an optimizer
          changes its own tensors: as many tensors of the same shapes, or flat ones of the same
          size, which belong to no model that was called.

    Stays quiet on:
        - Masters whose values are copied back.
        - Another model of the same shapes that is called, e.g. a student beside its teacher.
        - Frozen models.
        - Models in evaluation mode.

    Fix:
        Copy each master to its parameter after optimizer.step(), under no_grad().

    Source:
        https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html
    """

    title = "Copies of the parameters of {subject} are updated, but {subject} does not change"
    likely_cause = (
        "The optimizer holds master copies of the parameters, and their values are not copied "
        "back after its step: {observed}."
    )
    fix = "Copy each master to its parameter after optimizer.step(){where}, under no_grad()."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.MODULE}), states=frozenset({"parameter@step"}))
    )
    _streaks: dict[str, Streak] = fresh(dict)
    _called: set[str] = fresh(set)  # models called so far

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._called |= {forward.path for forward in facts.forwards}
        if not facts.is_complete or self.ledger.has_gap:
            self._streaks.clear()
            return []
        owners = {str(moment.call.owner) for moment in facts.updates()}
        stepped = [h for owner, h in self.ledger.holders.items() if owner in owners]
        moving = [h for h in stepped if not facts.changed.isdisjoint(h.ids) and self._is_apart(h)]
        if not moving:
            return []
        idle = {
            root: h
            for root in self._idle(facts)
            for h in moving
            if are_masters(self.ledger, h, root)
        }
        self._streaks = {root: s for root, s in self._streaks.items() if root in idle}
        found = []
        for root, holder in sorted(idle.items()):
            if extend(self._streaks, root, facts.event.step).count == _CONFIRMED:
                steps = [m.call for m in facts.updates() if m.call.owner == holder.event.id]
                count = self._streaks[root].count
                found += self.proven(
                    facts,
                    step=self._streaks[root].first,
                    subject=Subject(module=root),
                    symptom=Symptom.NOT_UPDATED,
                    message=f"{holder.label} updates copies of {root}, but {root} does not change",
                    expected=f"{root} changes with the copies that are updated",
                    observed=f"{holder.label} has stepped {count} times since {root} last changed",
                    evidence=steps[:1],
                )
        return found

    def _is_apart(self, holder: Holder) -> bool:
        """Whether none of its parameters belongs to a model that was called."""
        books = self.ledger.parameters
        return not any(i in books and books[i].root in self._called for i in holder.ids)

    def _idle(self, facts: StepFacts) -> list[str]:
        """Unchanged models whose parameters all get gradients that no optimizer uses."""
        trained: dict[str, set[int]] = {}
        for identity, parameter in self.ledger.parameters.items():
            if parameter.requires_grad:
                trained.setdefault(parameter.root, set()).add(identity)
        used = self.ledger.held() | facts.changed | facts.uncertain
        called = {forward.path for forward in facts.forwards if forward.is_training}
        roots = sorted(called & trained.keys())
        self.triggered += bool(roots)
        return [r for r in roots if trained[r] <= facts.reached and trained[r].isdisjoint(used)]
