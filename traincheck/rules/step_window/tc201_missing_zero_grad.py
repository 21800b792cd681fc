"""A step applies the gradients of the previous step again.

Follows gradients, not only calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.step_window.accumulated_gradients import Pile, Piling
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_APPLIED = (
    "optimizer.step(){where} at step {step} applies gradients of {variables} that still contain "
    "those of the previous step."
)
_BY_HAND = (
    "The program updates its parameters without an optimizer and never clears gradients: "
    "backward(){where} at step {step} adds to the gradients of {variables}."
)
_CLEAR = "Call model.zero_grad(), or set p.grad = None for each parameter, after every update."


class MissingZeroGrad(StepRule, code="TC201", severity="error"):
    """missing-zero-grad: gradients are not cleared between two steps of an optimizer.

    What it checks:
        Between two steps of the same optimizer, the gradients that the first step applied are
        cleared before backward() adds to them. They are cleared by zero_grad() of the optimizer or
        the model, or by hand. The same holds for two updates that the program makes without an
        optimizer.

    Why it matters:
        Every step applies the sum of all gradients so far. Training continues with a stale
        direction and a growing step size.

    Fires on:
        - A loop without zero_grad().
        - A zero_grad() of another optimizer or of another model.
        - A zero_grad() that is reached only occasionally.
        - A loop without an optimizer whose gradients are never cleared. It updates its parameters
          itself 64 times in a row, or four times by the end of the run.

    Stays quiet on:
        - zero_grad() at the start or the end of the loop, of the optimizer or of the model.
        - Gradients that are set to None, or written in each step, by hand (e.g. of fp32 master
          weights).
        - Accumulation over several backward() between two steps.
        - The generator's backward() that reaches a discriminator.
        - Closures (LBFGS).
        - The first step.
        - Steps that GradScaler skips.
        - Gradients left by a step that was not recorded and that no optimizer has applied.
        - Without an optimizer: accumulation over several backward() before an update.
        - Without an optimizer: momentum kept in the gradients.
        - Without an optimizer: weights that are written without a gradient (averages, target
          networks, limits, masks).
        - Without an optimizer: steps that are sampled.

    Fix:
        Call optimizer.zero_grad() once per optimizer step. Without an optimizer, call
        model.zero_grad() or set p.grad = None after each update.

    Source:
        https://stackoverflow.com/questions/60335387
    """

    title = "Gradients are not cleared between optimizer steps"
    title_of_several = "Gradients are not cleared between the steps of {optimizer}"
    likely_cause = (
        "optimizer.zero_grad() is missing or does not reach them: optimizer.step(){where} at "
        "step {step} applies gradients of {variables} that still contain those of the "
        "previous step."
    )
    fix = "Call optimizer.zero_grad() once in every iteration, before loss.backward()."
    fix_of_several = (
        "Call zero_grad() of {optimizer} once in every iteration, before the backward() that "
        "computes its gradients."
    )
    needs = DISCOVERY | GRADIENTS | Needs(kinds=frozenset({"mark"}))
    _windows: dict[str, _Window] = fresh(dict)
    # Last zero_grad that cleared an optimizer's gradients
    _cleared: dict[str, CallEvent] = fresh(dict)
    _piling = fresh(Piling)

    def judge(self, facts: StepFacts) -> list[Violation]:
        self.triggered += bool(facts.by_hand)
        return self._by_optimizers(facts) + [
            violation
            for pile in self._piling.step(facts, self.ledger.held())
            for violation in self._piled(pile)
        ]

    def finish(self) -> list[Violation]:
        return [violation for pile in self._piling.finish() for violation in self._piled(pile)]

    def _piled(self, pile: Pile) -> list[Violation]:
        """Violations of updates that the program makes without an optimizer."""
        return [
            replace(
                self.proof(
                    pile.facts,
                    subject=Subject(api=Families.ZERO_GRAD, variable=name),
                    symptom=Symptom.MISSING_ZERO_GRAD,
                    message=f"the program updates {name} again although its gradient still "
                    "contains that of the previous update: nothing clears it in between",
                    expected="gradients are cleared between two updates",
                    observed="backward() added to gradients that the previous update had applied",
                    evidence=(pile.backward,),
                ),
                title="Gradients are not cleared between updates",
                likely_cause=_BY_HAND,
                fix=_CLEAR,
            )
            for name in self.ledger.names(pile.ids)
        ]

    def _by_optimizers(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._windows.clear()
            return []
        found: list[Violation] = []
        for owner, used in facts.kept.items():
            self._windows.setdefault(owner, _Window(used=set(used)))
        for moment in facts.moments:
            for window in self._windows.values():
                window.used -= moment.cleared
                window.piled -= moment.cleared
                # Changes elsewhere are writes of the program
                if moment.family == Families.BACKWARD:
                    window.piled |= window.used & moment.reached
            if moment.family == Families.ZERO_GRAD:
                self._note(moment)
            if (
                moment.family == Families.OPTIMIZER_STEP
                and moment.call.owner in self.ledger.holders
            ):
                found += self._step(moment, facts)
        return found

    def _note(self, moment: Moment) -> None:
        for window in self._windows.values():
            window.other = moment.call
        for owner, holder in self.ledger.holders.items():
            if not holder.ids.isdisjoint(moment.cleared):
                self._cleared[owner] = moment.call

    def _step(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        owner = str(moment.call.owner)
        window = self._windows.get(owner)
        self._windows[owner] = _Window(used=set(moment.applied))
        if window is None:
            return []
        self.triggered += 1
        # The call that ran instead of the missing zero_grad, or "" if there was none.
        cleared = self._cleared.get(owner)
        call = cleared or window.other
        if call is None:
            cause = ""
        else:
            place = f" ({short(call.where)})" if call.where else ""
            what = "is not called in every iteration" if cleared else "clears other gradients"
            cause = f"zero_grad(){place} {what}: {_APPLIED}"
        found = []
        for identity in sorted(window.piled, key=self.ledger.name):
            name = self.ledger.name(identity)
            event = facts.event
            label = self.ledger.holders[str(moment.call.owner)].label
            backward = [
                m.call
                for m in facts.moments
                if m.family == Families.BACKWARD and m.call.span < moment.call.span
            ]
            found += self.found(
                event,
                stage="train",
                subject=Subject(api=Families.ZERO_GRAD, variable=name),
                symptom=Symptom.MISSING_ZERO_GRAD,
                message=f"{label} steps again although the gradient of {name} still contains that "
                "of the previous step: there is no zero_grad() in between",
                expected="gradients are cleared between two steps of an optimizer",
                observed="backward() added to gradients that the previous step had applied",
                evidence=(moment.call, *backward[-1:]),
                likely_cause=cause,
                optimizer=self.ledger.one_of_several(str(moment.call.owner)),
            )
        return found


@dataclass(slots=True)
class _Window:
    """State since the last step of an optimizer.

    Attributes:
        used: gradients applied and not cleared since.
        piled: those of them that backward() then added to.
        other: a zero_grad since then.
    """

    used: set[int] = field(default_factory=set)
    piled: set[int] = field(default_factory=set)
    other: CallEvent | None = None
