"""TC203: an optimizer steps with nothing to apply.

One such step proves nothing; two in a row do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.rules._ledger import (
    DISCOVERY,
    GRADIENTS,
    Moment,
    StepFacts,
    StepMonitor,
    proof,
)
from traincheck.rules._streak import Streak, extend
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.words import joined

_CONFIRMED = 2  # once may be a conditional branch
_NEVER = 50  # steps of an optimizer that never had a gradient: no warm-up of another part


class StepWithoutGradient:
    """TC203 step-without-gradient: an optimizer steps before backward or after zero_grad.

    What it checks:
        When an optimizer steps, its parameters have the gradients that backward() has computed for
        them since its last step.

    Why it matters:
        Nothing is learned, although every call of the loop is there. The loss still moves with the
        batches.

    Fires on:
        Two steps in a row of an optimizer, all of whose gradients are None or zero, while
        backward() did compute gradients for its parameters that were cleared unused. Fifty steps of
        one that holds a whole model which never gets a gradient, though it runs with grad: a
        generator whose images are detached in its own loss, too.

    Stays quiet on:
        A single step() before training, as schedulers ask for; an iteration in which nothing is to
        be learned; optimizers that are idle for some steps; zero_grad() after the step; gradients
        that are assigned by hand; steps that were not recorded.

    Fix:
        Order the loop as zero_grad(), forward, backward(), step().

    Source:
        https://discuss.pytorch.org/t/what-step-backward-and-zero-grad-do/33301
    """

    info = CheckInfo(
        check_id="TC203",
        kind="rule",
        code="TC203",
        severity="error",
        title="The optimizer steps when it has no gradient to apply",
        likely_cause=(
            "{observed}: step(){where} comes before backward(), or zero_grad() comes between "
            "backward() and step()."
        ),
        fix="Order the loop as optimizer.zero_grad(), forward, loss.backward(), optimizer.step().",
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.MODULE}), states=frozenset({"parameter@step"}))
    )

    def monitor(self) -> EmptySteps:
        return EmptySteps()


@dataclass(slots=True)
class _Run:
    """Empty steps of one optimizer in a row.

    wasted: those before which gradients were cleared unused.
    """

    wasted: int = 0
    first: int | None = None
    first_call: CallEvent | None = None
    reached: set[int] = field(default_factory=set)  # by backward, since the last step
    lost: set[int] = field(default_factory=set)  # of all these steps


class EmptySteps(StepMonitor):
    """Follows each optimizer from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, _Run] = {}
        self._never: dict[str, Streak] = {}  # optimizers that had no gradient so far

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_whole:
            self._runs.clear()
            self._never.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            if moment.reached:
                for key, holder in self.ledger.holders.items():
                    ours = moment.reached.intersection(holder.names)
                    if ours:
                        self._runs.setdefault(key, _Run()).reached |= ours
            if (
                moment.family == Families.OPTIMIZER_STEP
                and moment.call.owner in self.ledger.holders
            ):
                found += self._step(moment, facts)
                found += self._without_any(moment, facts)
        return found

    def _without_any(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        """Told once, at the step at which it is certain."""
        ledger, owner = self.ledger, str(moment.call.owner)
        ids = ledger.holders[owner].ids
        called = {f.path for f in facts.forwards if f.call.grad_enabled}
        wholes = [
            root
            for root in sorted(called)
            if (owned := {i for i, p in ledger.parameters.items() if p.root == root})
            and owned <= ids
            and any(ledger.parameters[i].requires_grad for i in owned)
        ]
        is_fed = not ids.isdisjoint(ledger.ever_reached | facts.changed)
        if not wholes or is_fed or ledger.has_gap:
            self._never.pop(owner, None)
            return []
        streak = extend(self._never, owner, facts.event.step)
        if streak.count != _NEVER:
            return []
        label, models = ledger.holders[owner].label, joined(wholes)
        found = proof(
            ("TC203", Symptom.STEP_WITHOUT_GRADIENT),
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP, module=wholes[0]),
            message=f"{label} steps, and no gradient ever reaches {models}",
            expected="gradients from backward() are there when the optimizer steps",
            observed=f"none in {_NEVER} steps of {label}, though {models} runs with grad",
            evidence=[moment.call],
        )
        cause = (
            f"What {models} computes is cut off from every loss: by a detach(), a no_grad() block, "
            ".data, or a loss that does not use it."
        )
        fix = f"Remove what cuts {models} off from its loss."
        return [replace(found, likely_cause=cause, fix=fix)]

    def _step(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        owner = str(moment.call.owner)
        run = self._runs.setdefault(owner, _Run())
        reached, run.reached = run.reached, set()
        was_reached = bool(reached)
        self.triggered += was_reached
        if moment.applied or not facts.changed.isdisjoint(self.ledger.holders[owner].names):
            self._runs[owner] = _Run()
            return []
        if run.first_call is None or not was_reached:
            run.first, run.first_call, run.wasted = facts.event.step, moment.call, 0
        run.wasted += was_reached
        run.lost |= reached
        if run.wasted < _CONFIRMED:
            return []
        step = run.first if run.wasted == _CONFIRMED else facts.event.step
        return [self._violation(owner, step, run, facts)]

    def _violation(self, owner: str, step: int | None, run: _Run, facts: StepFacts) -> Violation:
        event = facts.event
        label = self.ledger.holders[owner].label
        calls = [m.call for m in facts.moments if m.family == Families.BACKWARD][:1]
        names = self.ledger.names(run.lost)
        first = [run.first_call] if run.first_call is not None else []
        return Violation(
            check_id="TC203",
            step=step,
            rank=event.rank,
            stage="train",
            subject=Subject(
                api=Families.OPTIMIZER_STEP, variable=names[0] if len(names) == 1 else None
            ),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=(
                f"{label} steps while every gradient it could apply is None or zero, and the "
                f"gradients that backward() computes of {joined(names)} are cleared unused"
            ),
            expected="gradients from backward() are there when the optimizer steps",
            observed=f"{label} finds no gradient of {joined(names)} at its step",
            evidence=(*first, *calls),
        )
