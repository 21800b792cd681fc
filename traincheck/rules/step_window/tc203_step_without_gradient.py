"""An optimizer steps with nothing to apply.

One such step proves nothing; two in a row do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.rules.base.streak import Streak, extend
from traincheck.rules.step_window.unowned_tensors import LooseTensors
from traincheck.rules.step_window.unused_backwards import VainPasses
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CONFIRMED = 2  # once may be a conditional branch
_VAIN = 3  # steps for which backward() ran and gave nothing to anyone
_NEVER = 50  # steps of an optimizer that never had a gradient: no warm-up of another part


class StepWithoutGradient(StepRule, code="TC203", severity="error"):
    """step-without-gradient: an optimizer steps before backward or after zero_grad.

    What it checks:
        When an optimizer steps, its parameters have the gradients that backward() has computed for
        them since its last step.

    Why it matters:
        Nothing is learned, although every call of the loop is there. The loss still moves with the
        batches.

    Fires on:
        Two steps in a row of an optimizer, all of whose gradients are None or zero, while
        backward() did compute gradients for its parameters that were cleared unused. Three steps in
        a row of one that never had a gradient, though what it holds runs with grad and backward()
        ran right before, and what that computed for others, if anything, is cleared unused: a
        generator whose images are detached in its own loss. Ten of one that holds tensors of no
        model, and none of them ever has a gradient after backward(): copies of parameters. Fifty of
        one that has none any more, after calls of backward() in lines that used to bring some: the
        tensors were replaced by others. Else fifty steps of one that holds a whole model.

    Stays quiet on:
        A single step() before training, as schedulers ask for; an iteration in which nothing is to
        be learned; optimizers that are idle for some steps, or while others apply what backward()
        computed; losses that are multiplied by zero; zero_grad() after the step; gradients that
        are assigned by hand; steps that were not recorded.

    Fix:
        Order the loop as zero_grad(), forward, backward(), step().

    Source:
        https://discuss.pytorch.org/t/what-step-backward-and-zero-grad-do/33301
    """

    title = "The optimizer steps when it has no gradient to apply"
    title_of_several = "{optimizer} steps when it has no gradient to apply"
    likely_cause = (
        "{observed}: step(){where} comes before backward(), or zero_grad() comes between "
        "backward() and step()."
    )
    fix = "Order the loop as optimizer.zero_grad(), forward, loss.backward(), optimizer.step()."
    fix_of_several = "Order zero_grad(), forward, backward() and step() of {optimizer} so."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.MODULE}), states=frozenset({"parameter@step"}))
    )

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, _Run] = {}
        self._never: dict[str, Streak] = {}  # optimizers that had no gradient so far
        self._loose = LooseTensors()
        self._vain = VainPasses()
        self._has_passed = False  # a backward pass was seen
        self._told: set[str] = set()  # optimizers that are cut off, each of which is told once

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._runs.clear()
            self._never.clear()
            self._loose.forget()
            self._vain = VainPasses()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            if moment.reached:
                for key, holder in self.ledger.holders.items():
                    ours = moment.reached.intersection(holder.names)
                    if ours:
                        self._runs.setdefault(key, _Run()).reached |= ours
            self._has_passed |= moment.family == Families.BACKWARD
            self._vain.follow(moment)
            if (
                moment.family == Families.OPTIMIZER_STEP
                and moment.call.owner in self.ledger.holders
            ):
                found += self._step(moment, facts)
                found += self._without_any(moment, facts)
            self._vain.settle(moment)
        return found

    def _without_any(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        """Told once, at the step at which it is certain."""
        ledger, owner = self.ledger, str(moment.call.owner)
        holder = ledger.holders[owner]
        is_fed = moment.present or not holder.ids.isdisjoint(ledger.ever_reached | facts.changed)
        if all(map(holder.is_unowned, holder.ids)) and not ledger.has_gap:
            return self._loose.judge(moment, facts, holder.label)
        if is_fed or ledger.has_gap:  # gradients of zeros too: of a loss that is weighted so
            self._never.pop(owner, None)
            self._vain.forget(owner)
            return []
        if ledger.ever_reached:  # where no pass ever reaches anything, TC112 tells it
            self._vain.enter(owner, facts)
        called = {m.call.module for m in facts.moments if m.family == Families.MODULE}
        called |= {path for path, call in facts.uses.items() if call.grad_enabled}
        parts = self._parts(holder.ids, {path for path in called if path})
        wholes = [part for part in parts if "." not in part]
        if not wholes:
            self._never.pop(owner, None)
        elif extend(self._never, owner, facts.event.step).count >= _NEVER:
            return self._cut_off(owner, wholes, self._never[owner], moment, facts)
        vain = self._vain.streaks.get(owner)
        if not parts or vain is None or vain.count < _VAIN:
            return []
        if any(map(holder.is_unowned, holder.ids)):
            return []  # the pass may have been for these, put there since the last look
        return self._cut_off(owner, parts, vain, moment, facts)

    def _parts(self, ids: frozenset[int], called: set[str]) -> list[str]:
        """The outermost modules that ran, of which the optimizer holds all, and some not frozen."""
        ours: set[str] = set()
        others: set[str] = set()
        for identity, parameter in self.ledger.parameters.items():
            for name in parameter.names:
                if identity not in ids:
                    others.update(_above(name))
                elif parameter.requires_grad:
                    ours.update(_above(name))
        parts = (ours & called) - others
        return sorted(part for part in parts if parts.isdisjoint(_above(part)))

    def _cut_off(
        self, owner: str, parts: list[str], streak: Streak, moment: Moment, facts: StepFacts
    ) -> list[Violation]:
        if owner in self._told:
            return []
        self._told.add(owner)
        label, models = self.ledger.holders[owner].label, joined(parts)
        found = proof(
            (self.code, Symptom.STEP_WITHOUT_GRADIENT, self.ledger.one_of_several(owner)),
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP, module=parts[0]),
            message=f"{label} steps, and no gradient ever reaches {models}",
            expected="gradients from backward() are there when the optimizer steps",
            observed=f"none in {streak.count} steps of {label}, though {models} runs with grad",
            evidence=[moment.call],
        )
        cause = (
            f"What {models} computes is cut off from every loss: by a detach(), a no_grad() block, "
            ".data, or a loss that does not use it."
        )
        fix = f"Remove what cuts {models} off from its loss."
        if not self._has_passed:
            cause = "loss.backward() is never called: it is missing, or lacks its parentheses."
            fix = "Call loss.backward(), with parentheses, before optimizer.step()."
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
            check_id=self.code,
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
            optimizer=self.ledger.one_of_several(owner),
        )


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


def _above(name: str) -> list[str]:
    """The paths of all modules around a variable or module: ``Net.fc1`` and ``Net``."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
