"""Backward() from a loss that the model has no part in. Parts of a model are TC105's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traincheck.facts.optimizers import Holder
from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CONFIRMED = 2
_EMPTY = (
    "The optimizer was made when nothing required a gradient, or of an empty list, and all is "
    "frozen: {observed}."
)
_FILL = "Let what is to be trained require grad before the optimizer is made, and give it that."


class LossCutOff(StepRule, code="TC112", severity="error"):
    """loss-cut-off: backward() runs, and reaches no parameter at all.

    What it checks:
        Where backward() runs and an optimizer steps, it has reached some parameter.

    Why it matters:
        Nothing is learned, although every call of the loop is there and none complains: an
        optimizer leaves out parameters whose gradient is None.

    Fires on:
        Two steps in a row with a backward() that reaches no parameter, and a step() of an
        optimizer none of whose parameters ever had a gradient, nor changes: the loss was wrapped
        anew (torch.tensor(loss, requires_grad=True), Variable(...)), it was computed from
        detached results, or requires_grad_() was called to silence an error. Also of an optimizer
        without any parameter, as where the adapters of a frozen model are not trainable.

    Stays quiet on:
        Gradients that reach any parameter, of this model or another; an optimizer that had
        gradients before; gradients of zeros, which are TC704's; parameters that change all the same
        (gradients assigned by hand, optimizers within backward()); optimizers that do not step;
        optimizers of tensors that no module owns (an image, the stacked parameters of an ensemble).

    Fix:
        Compute the loss from the model's results by operations of torch, without detach(), .data,
        .item(), NumPy or torch.tensor() on the way, and take requires_grad_() away.

    Source:
        https://github.com/pytorch/pytorch/issues/40983,
        https://github.com/qianjinhao/circle-loss/issues/4
    """

    title = "backward() reaches no parameter: the loss is cut off from the model"
    likely_cause = (
        "The loss{where} was wrapped by torch.tensor() or computed from detached results: "
        "{observed}."
    )
    fix = (
        "Compute the loss from the model's results without detach(), .data, .item(), NumPy or "
        "torch.tensor() on the way; take away the requires_grad_() that silenced an error."
    )
    needs = DISCOVERY | GRADIENTS | Needs(states=frozenset({"parameter@step"}))

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, _Run] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        backward = next((m.call for m in facts.moments if _went_back(m.call)), None)
        if not facts.is_complete or backward is None:
            self._runs.clear()
            return []
        updates = {str(m.call.owner): m for m in facts.updates()}
        owners = updates.keys() & self.ledger.holders.keys()
        self.triggered += bool(owners)
        owners -= {owner for owner in owners if updates[owner].present}  # of zeros, perhaps: TC704
        idle = {owner for owner in owners if self._is_cut_off(self.ledger.holders[owner], facts)}
        self._runs = {owner: run for owner, run in self._runs.items() if owner in idle}
        found = []
        for owner in sorted(idle):
            run = self._runs.setdefault(owner, _Run(facts.event.step, backward))
            run.steps += 1
            if run.steps >= _CONFIRMED:
                step = run.first if run.steps == _CONFIRMED else facts.event.step
                found.append(self._violation(self.ledger.holders[owner], step, run, facts))
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
        # Those may be others than at the last look: then some of a model must be waiting for one
        owned = self.ledger.parameters.keys() & holder.ids
        return any(self.ledger.parameters[identity].requires_grad for identity in owned)

    def _violation(
        self, holder: Holder, step: int | None, run: _Run, facts: StepFacts
    ) -> Violation:
        names = sorted(holder.names.values())
        held = f"no gradient ever reached {joined(names)} of {holder.label}"
        found = proof(
            (self.code, Symptom.STEP_WITHOUT_GRADIENT),
            facts,
            step=step,
            subject=Subject(api=Families.BACKWARD),
            message=f"backward() reaches no parameter, and {holder.label} steps all the same",
            expected="backward() computes gradients of parameters",
            observed=held if names else f"{holder.label} holds no parameter",
            evidence=[run.backward],
        )
        return found if names else replace(found, likely_cause=_EMPTY, fix=_FILL)


@dataclass(slots=True)
class _Run:
    """Steps in a row of one optimizer that never had a gradient. backward: of the first."""

    first: int | None
    backward: CallEvent
    steps: int = 0


def _went_back(call: CallEvent) -> bool:
    return (call.family or call.api) == Families.BACKWARD and call.exception is None
