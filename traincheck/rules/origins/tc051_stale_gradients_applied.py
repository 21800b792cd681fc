"""An optimizer applies the same gradients again and again, and backward computes others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from traincheck.readings import recorded
from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import NORMS
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import ReplacedGradients, WrittenGradients
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_IN_A_ROW = 4  # updates with one set of gradients
_MOST_NAMES = 3


class StaleGradientsApplied(StepRule, code="TC051", severity="error"):
    """stale-gradients-applied: an optimizer applies old gradients while backward computes others.

    What it checks:
        The gradients that an optimizer applies differ from update to update, as long as backward
        passes in between compute gradients.

    Why it matters:
        Gradients of a worker, of a copy of the model or of a low-precision model are handed over
        once and never again. The optimizer follows one batch for ever. The loss moves, so nothing
        looks wrong.

    Fires on:
        - Four updates in a row with bit-identical, nonzero gradients, while backward passes in
          between computed new gradients of parameters that no optimizer holds. Example:
          ensure_shared_grads() of A3C, which returns if the shared model already has a gradient.

    Stays quiet on:
        - Gradients that any backward pass or assignment has changed since the last update.
        - Backward passes whose gradients another optimizer applies, e.g. of a GAN.
        - Gradients that are the same each time, e.g. of a loss that is linear in the weights.
        - Zero gradients.
        - Updates without a backward pass in between.
        - Steps that were not recorded.

    Fix:
        Copy the gradients before each update: for p, q in zip(...): p.grad = q.grad.clone().

    Source:
        https://github.com/ikostrikov/pytorch-a3c/issues/20
    """

    title = "The optimizer applies the same old gradients in every update"
    title_of_several = "{optimizer} applies the same old gradients in every update"
    likely_cause = (
        "The gradients of backward() are handed to the optimizer's parameters only once, "
        "e.g. `if shared.grad is not None: return`: {observed}."
    )
    fix = (
        "Before every optimizer.step(), copy all gradients: for p, q in "
        "zip(shared.parameters(), local.parameters()): p.grad = q.grad.clone()."
    )
    needs = NORMS | needs_of(WrittenGradients, ReplacedGradients)
    _rows: dict[str, _Row] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or facts.has_own or self.ledger.has_gap:
            self._rows.clear()
            return []
        used = {str(moment.call.owner) for moment in facts.updates()}
        held = self.ledger.held()
        found: list[Violation] = []
        for moment in facts.moments:
            is_update = moment.family == Families.OPTIMIZER_STEP
            for owner in used:
                row = self._rows.setdefault(owner, _Row())
                # Enter a call: which gradients it changed. written: those that the
                # program assigned.
                holder = self.ledger.holders.get(owner)
                ours = holder.ids if holder is not None else frozenset()
                row.is_fresh |= not ours.isdisjoint(moment.reached | moment.cleared | facts.written)
                if moment.family == Families.BACKWARD:
                    row.others |= moment.reached - held
                if is_update and moment.call.owner == owner and self._is_stale(row, moment, facts):
                    lines = [m.call for m in facts.moments if m.family == Families.BACKWARD]
                    computed = {i for m in facts.moments for i in m.reached} - self.ledger.held()
                    names = joined(self.ledger.names(computed), _MOST_NAMES)
                    found += self.proven(
                        facts,
                        step=row.first,
                        subject=Subject(api=Families.OPTIMIZER_STEP),
                        symptom=Symptom.STEP_WITHOUT_GRADIENT,
                        message=f"{row.count + 1} updates in a row apply bit-identical gradients, "
                        f"while backward computes new ones of {names}, which no optimizer applies",
                        expected="gradients that the backward pass before the update has computed",
                        observed=f"{row.count + 1} updates with the same gradients of "
                        f"{len(moment.applied)} parameters; backward computed others of {names}",
                        evidence=[*lines[-1:], moment.call],
                        optimizer=self.ledger.one_of_several(owner),
                    )
                    self.reported.add(owner)
        return found

    def _is_stale(self, row: _Row, moment: Moment, facts: StepFacts) -> bool:
        """Judge an update, and begin to wait for the next one."""
        others, row.others = row.others, set()
        fresh, row.is_fresh = row.is_fresh, False
        self.triggered += bool(others)
        if fresh or not moment.applied or not others or moment.call.exception is not None:
            row.restart()
            return False
        row.first = facts.event.step if not row.count else row.first
        row.count += 1
        row.computed.update(_norms(facts, others))
        # One of the first set, and each update since has computed others
        return (
            row.count + 1 >= _IN_A_ROW
            and len(row.computed) >= _IN_A_ROW - 1
            and str(moment.call.owner) not in self.reported
        )


@dataclass(slots=True)
class _Row:
    """The updates of one optimizer.

    Attributes:
        count: updates in a row with the gradients of the update before.
        first: step of the first of them.
        is_fresh: whether a gradient of its parameters has changed since the last update.
        others: parameters of no optimizer whose gradients were computed since.
        computed: norms of such gradients in this row.
    """

    count: int = 0
    first: int | None = None
    is_fresh: bool = True
    others: set[int] = field(default_factory=set)
    computed: set[float] = field(default_factory=set)

    def restart(self) -> None:
        """Gradients are new, or nothing was computed."""
        self.count, self.first = 0, None
        self.computed.clear()


def _norms(facts: StepFacts, identities: Iterable[int]) -> set[float]:
    """The norm of the last computed gradient of one of the parameters."""
    for identity in sorted(identities):
        norm = recorded.norm(facts.gradients.get(identity))
        if norm is not None:
            return {norm}
    return set()
