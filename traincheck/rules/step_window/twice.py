"""One loss or one gradient that is applied twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_SAME_LOSSES = 2


class SameLossTwice(StepRule, code="TC212"):
    """same-loss-twice: backward() runs twice on a retained graph of the same loss.

    What it checks:
        Between two steps, no two consecutive backward() get the same loss value without a forward
        or a zero_grad() in between.

    Why it matters:
        The gradient of this loss is doubled. Its weight relative to other losses, weight decay and
        clipping differs from the code, and a backward pass is wasted.

    Fires on:
        - Two iterations in a row with a second backward() on the retained graph of the same loss.

    Stays quiet on:
        - Several losses on one graph.
        - Gradients cleared between the two calls.
        - Losses of zero.
        - The losses of a GAN.

    Fix:
        Call backward() once for each loss, or on their sum.

    Source:
        https://discuss.pytorch.org/t/what-does-the-parameter-retain-graph-mean-in-the-variables-backward-method/1982
    """

    title = "backward() runs twice on the same loss"
    likely_cause = "retain_graph=True lets a second backward(){where} run on the same loss."
    fix = "Remove one of the two backward() calls, together with retain_graph=True."
    needs = DISCOVERY | GRADIENTS | Needs(calls=frozenset({Families.MODULE}))
    _last: CallEvent | None = None
    _steps: list[int | None] = fresh(list)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._last = None
            self._steps.clear()
            return []
        self._last = None
        pair = None
        for moment in facts.moments:
            if moment.family == Families.BACKWARD:
                pair = pair or self._same(moment)
                self._last = moment.call if moment.call.args.get("retain_graph") else None
            elif moment.family in (Families.MODULE, Families.ZERO_GRAD, Families.OPTIMIZER_STEP):
                self._last = None
        if pair is None:
            if facts.updates():
                self._steps.clear()
            return []
        self._steps.append(facts.event.step)
        if len(self._steps) != _SAME_LOSSES:
            return []
        return self.proven(
            facts,
            step=self._steps[0],
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.APPLIED_TWICE,
            message="backward() runs twice on the same loss with no zero_grad() in between, so its "
            "gradient is doubled",
            expected="one backward() for each loss",
            observed=f"two backward() in a row on a loss of {_value(pair[0])}",
            evidence=(pair[1], pair[0]),
        )

    def _same(self, moment: Moment) -> tuple[CallEvent, CallEvent] | None:
        value = _value(moment.call)
        self.triggered += 1
        if self._last is None or not value or value != _value(self._last) or moment.cleared:
            return None
        return self._last, moment.call


def _value(call: CallEvent) -> float | None:
    """The loss value, if it was recorded (a number in CPU memory)."""
    tensors = call.args.get("tensors")
    if isinstance(tensors, list):
        tensors = tensors[0] if len(tensors) == 1 else None
    value = tensors.get("value") if isinstance(tensors, dict) else None
    return value if isinstance(value, float) else None


_DOUBLE_STEPS = 3


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
    _runs: dict[str, _Run] = fresh(dict)

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
        if len(run.pairs) != _DOUBLE_STEPS:
            return []
        step, second, first = run.pairs[0]
        holder = self.ledger.holders.get(str(second.owner))
        label = holder.label if holder is not None else "the optimizer"
        return self.proven(
            facts,
            step=step,
            subject=Subject(api=Families.OPTIMIZER_STEP),
            symptom=Symptom.APPLIED_TWICE,
            message=f"{label} steps twice after each backward(), with the same gradients and no "
            "call of the loop in between",
            expected="one step for each backward()",
            observed=f"{label} steps again on gradients that it has just applied",
            evidence=(second, first),
            optimizer=self.ledger.one_of_several(str(second.owner)),
        )


@dataclass(slots=True)
class _Run:
    """Repeated steps in a row of one optimizer, and its last step if no call followed.

    Attributes:
        is_repeated: whether two steps followed the last backward.
    """

    last: Moment | None = None
    is_repeated: bool = False
    pairs: list[tuple[int | None, CallEvent, CallEvent]] = field(default_factory=list)
