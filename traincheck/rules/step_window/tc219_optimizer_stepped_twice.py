"""An optimizer steps a second time on gradients that it has already applied."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_CONFIRMED = 3


class OptimizerSteppedTwice(StepRule, code="TC219", aliases=("stepped-again",)):
    """optimizer-stepped-twice: step() runs twice for each backward().

    What it checks:
        Between two steps of an optimizer, a forward or a backward() runs, or gradients are cleared.

    Why it matters:
        Each gradient is applied twice. With plain SGD this doubles the learning rate. With momentum
        or Adam, the averages count each batch twice, and so do bias correction, decay and schedules
        that count steps.

    Fires on:
        - Three backward() in a row after each of which the same optimizer steps twice, with the
          same gradients and no call of the loop in between. Example: a manual step() after
          scaler.step(), or after a trainer or a helper that already steps.

    Stays quiet on:
        - Optimizers that need several evaluations per step (closures, sharpness-aware steps).
        - Several optimizers after one backward().
        - Gradients that change in between.
        - Steps that a scaler skipped.
        - A step that is repeated occasionally.

    Fix:
        Call step() once for each backward().

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#taking-an-optimization-step
    """

    title = "The optimizer applies each gradient twice"
    title_of_several = "{optimizer} applies each gradient twice"
    likely_cause = "step(){where} is called a second time after the same backward()."
    fix = (
        "Call step() once for each backward(). Remove the manual call if a scaler, a trainer or a "
        "helper function already steps."
    )
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.MODULE}))

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, _Run] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._runs.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            if moment.family != Families.OPTIMIZER_STEP:
                for run in self._runs.values():
                    run.last = None
            elif moment.call.exception is None and moment.call.owner is not None:
                found += self._step(moment, facts)
        return found

    def _step(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        self.triggered += bool(moment.applied)
        run = self._runs.setdefault(str(moment.call.owner), _Run())
        last, run.last = run.last, moment
        is_fresh = not moment.applied or bool(moment.reached or moment.cleared)
        if last is None or is_fresh or moment.applied != last.applied:
            if not run.is_repeated:
                run.pairs.clear()
            run.is_repeated = False
            return []
        if run.is_repeated:  # the third step or a later one
            return []
        run.is_repeated = True
        run.pairs.append((facts.event.step, moment.call, last.call))
        if len(run.pairs) != _CONFIRMED:
            return []
        step, second, first = run.pairs[0]
        holder = self.ledger.holders.get(str(second.owner))
        label = holder.label if holder is not None else "the optimizer"
        return [
            proof(
                (self.code, Symptom.APPLIED_TWICE, self.ledger.one_of_several(str(second.owner))),
                facts,
                step=step,
                subject=Subject(api=Families.OPTIMIZER_STEP),
                message=(
                    f"{label} steps twice after each backward(), with the same gradients and no "
                    "call of the loop in between"
                ),
                expected="one step for each backward()",
                observed=f"{label} steps again on gradients that it has just applied",
                evidence=(second, first),
            )
        ]


@dataclass(slots=True)
class _Run:
    """Repeated steps in a row of one optimizer, and its last step if no call followed.

    Attributes:
        is_repeated: whether two steps followed the last backward.
    """

    last: Moment | None = None
    is_repeated: bool = False
    pairs: list[tuple[int | None, CallEvent, CallEvent]] = field(default_factory=list)
