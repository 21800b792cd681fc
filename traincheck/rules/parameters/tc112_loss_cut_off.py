"""Calls backward() on a loss that does not depend on the model. TC105 covers parts of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CONFIRMED = 2
_EMPTY = (
    "Everything is frozen: {observed}. The optimizer may have been built from an empty list, or "
    "while no parameter required grad."
)
_FILL = (
    "Set requires_grad=True for the parameters that are to be trained, then build the optimizer "
    "from them."
)


class LossCutOff(StepRule, code="TC112", severity="error"):
    """loss-cut-off: backward() runs, and reaches no parameter at all.

    What it checks:
        When backward() runs and an optimizer steps, backward() has reached some parameter.

    Why it matters:
        Nothing is learned, although the loop makes every call and none raises an error. An
        optimizer skips parameters whose gradient is None.

    Fires on:
        - Two steps in a row with a backward() that reaches no parameter and a step() of an
          optimizer whose parameters never had a gradient and do not change. Causes: the loss was
          wrapped again (torch.tensor(loss, requires_grad=True), Variable(...)), it was computed
          from detached results, or requires_grad_() was called to silence an error.
        - The same with an optimizer without any parameter, e.g. when the adapters of a frozen model
          are not trainable.

    Stays quiet on:
        - Gradients that reach any parameter, of this model or another.
        - An optimizer that had gradients before.
        - Gradients of zeros (TC704).
        - Parameters that change all the same (gradients assigned by hand, optimizers within
          backward()).
        - Optimizers that do not step.
        - Optimizers of tensors that no module owns (an image, the stacked parameters of an
          ensemble).

    Fix:
        Compute the loss from the model's results with torch operations, without detach(), .data,
        .item(), NumPy or torch.tensor() on the way. Remove the requires_grad_() call.

    Source:
        https://github.com/pytorch/pytorch/issues/40983,
        https://github.com/qianjinhao/circle-loss/issues/4
    """

    title = "backward() reaches no parameter: the loss is cut off from the model"
    likely_cause = (
        "The loss{where} may have been wrapped by torch.tensor() or computed from detached "
        "results: {observed}."
    )
    fix = (
        "Compute the loss from the model's results without detach(), .data, .item(), NumPy or "
        "torch.tensor() on the way. Remove the requires_grad_() that silenced an error."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))
    _runs: dict[str, _Run] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        calls = (moment.call for moment in facts.moments)
        backward = next(
            (
                call
                for call in calls
                if (call.family or call.api) == Families.BACKWARD and call.exception is None
            ),
            None,
        )
        if not facts.is_complete or backward is None:
            self._runs.clear()
            return []
        updates = {str(m.call.owner): m for m in facts.updates()}
        owners = updates.keys() & self.ledger.holders.keys()
        self.triggered += bool(owners)
        owners -= {
            owner for owner in owners if updates[owner].present
        }  # gradients may be zeros: TC704
        idle = {owner for owner in owners if self._is_cut_off(self.ledger.holders[owner], facts)}
        self._runs = {owner: run for owner, run in self._runs.items() if owner in idle}
        found = []
        for owner in sorted(idle):
            run = self._runs.setdefault(owner, _Run(facts.event.step, backward))
            run.steps += 1
            if run.steps >= _CONFIRMED:
                step = run.first if run.steps == _CONFIRMED else facts.event.step
                holder = self.ledger.holders[owner]
                names = sorted(holder.names.values())
                held = f"no gradient ever reached {joined(names)} of {holder.label}"
                violation = self.proof(
                    facts,
                    step=step,
                    subject=Subject(api=Families.BACKWARD),
                    symptom=Symptom.STEP_WITHOUT_GRADIENT,
                    message=f"backward() reaches no parameter, but {holder.label} steps all the "
                    "same",
                    expected="backward() computes gradients of parameters",
                    observed=held if names else f"{holder.label} holds no parameter",
                    evidence=[run.backward],
                )
                found.append(
                    violation if names else replace(violation, likely_cause=_EMPTY, fix=_FILL)
                )
        return found

    def _is_cut_off(self, holder: Holder, facts: StepFacts) -> bool:
        touched = self.ledger.ever_reached | facts.changed | facts.uncertain
        if not holder.ids:
            is_any = self.ledger.ever_reached or facts.changed  # updated in another way
            return not is_any and not self.ledger.has_gap
        if facts.reached or not touched.isdisjoint(holder.ids):
            return False
        if not any(map(holder.is_unowned, holder.ids)):
            return True
        # They may have changed since the last scan: require a model parameter that lacks a gradient
        owned = self.ledger.parameters.keys() & holder.ids
        return any(self.ledger.parameters[identity].requires_grad for identity in owned)


@dataclass(slots=True)
class _Run:
    """Steps in a row of one optimizer that never had a gradient.

    Attributes:
        backward: the backward() call of the first of these steps.
    """

    first: int | None
    backward: CallEvent
    steps: int = 0
