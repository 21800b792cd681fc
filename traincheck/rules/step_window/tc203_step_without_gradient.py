"""An optimizer steps without gradients to apply.

One such step proves nothing; two in a row do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.step_window.dry_optimizers import LooseTensors, UnusedPasses
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CONFIRMED = 2  # a single one may be a conditional branch
_UNUSED = 3  # steps for which backward() ran and no optimizer used the result
_NEVER = 50  # steps of an optimizer without any gradient: too many for a warm-up


class StepWithoutGradient(StepRule, code="TC203", severity="error"):
    """step-without-gradient: an optimizer steps before backward or after zero_grad.

    What it checks:
        When an optimizer steps, its parameters have the gradients that backward() has computed
        since its last step.

    Why it matters:
        Nothing is learned, although the loop makes every call. The loss still moves with the
        batches.

    Fires on:
        - Two steps in a row of an optimizer whose gradients are all None or zero, while gradients
          that backward() computed for its parameters were cleared unused.
        - Three steps in a row of an optimizer that never had a gradient, although its modules run
          with grad and backward() ran right before. Gradients that this backward() computed for
          other parameters, if any, are cleared unused. Example: a generator whose images are
          detached in its own loss.
        - Ten steps of an optimizer over tensors of no model, none of which ever has a gradient
          after backward(), e.g. copies of parameters.
        - Fifty steps of an optimizer over tensors of no model that no longer have a gradient, after
          calls of backward() in lines that used to produce one. The tensors were replaced by
          others.
        - Fifty steps, in all other cases, of an optimizer that holds a whole model.

    Stays quiet on:
        - A single step() before training, as schedulers require.
        - An iteration in which nothing is to be learned.
        - Optimizers that are idle for some steps, or while others apply the computed gradients.
        - Losses that are multiplied by zero.
        - zero_grad() after the step.
        - Gradients that are assigned by hand.
        - Steps that were not recorded.

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
    fix_of_several = "Order the calls for {optimizer} as zero_grad(), forward, backward(), step()."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.MODULE}), states=frozenset({"parameter@step"}))
    )
    _runs: dict[str, _Run] = fresh(dict)
    _never: dict[str, Streak] = fresh(dict)  # optimizers without a gradient so far
    _loose = fresh(LooseTensors)
    _unused = fresh(UnusedPasses)
    _has_passed = False  # whether a backward pass has run
    _reported: set[str] = fresh(set)  # optimizers that are cut off, each reported once

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._runs.clear()
            self._never.clear()
            self._loose.forget()
            self._unused = UnusedPasses()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            if moment.reached:
                for key, holder in self.ledger.holders.items():
                    ours = moment.reached.intersection(holder.names)
                    if ours:
                        self._runs.setdefault(key, _Run()).reached |= ours
            self._has_passed |= moment.family == Families.BACKWARD
            self._unused.follow(moment)
            if (
                moment.family == Families.OPTIMIZER_STEP
                and moment.call.owner in self.ledger.holders
            ):
                found += self._step(moment, facts)
                found += self._without_any(moment, facts)
            self._unused.settle(moment)
        return found

    def _without_any(self, moment: Moment, facts: StepFacts) -> list[Violation]:
        """Violations of an optimizer that never had a gradient, reported once when certain."""
        ledger, owner = self.ledger, str(moment.call.owner)
        holder = ledger.holders[owner]
        is_fed = moment.present or not holder.ids.isdisjoint(ledger.ever_reached | facts.changed)
        if all(map(holder.is_unowned, holder.ids)) and not ledger.has_gap:
            return self._loose.judge(moment, facts, holder.label)
        if is_fed or ledger.has_gap:  # zero gradients count too: the weight of a loss may be 0
            self._never.pop(owner, None)
            self._unused.forget(owner)
            return []
        if ledger.ever_reached:  # if no pass ever reaches a parameter, TC112 reports it
            self._unused.enter(owner, facts)
        called = {m.call.module for m in facts.moments if m.family == Families.MODULE}
        called |= {path for path, call in facts.uses.items() if call.grad_enabled}
        parts = self._parts(holder.ids, {path for path in called if path})
        wholes = [part for part in parts if "." not in part]
        if not wholes:
            self._never.pop(owner, None)
        elif extend(self._never, owner, facts.event.step).count >= _NEVER:
            return self._cut_off(owner, wholes, self._never[owner], moment, facts)
        unused = self._unused.streaks.get(owner)
        if not parts or unused is None or unused.count < _UNUSED:
            return []
        if any(map(holder.is_unowned, holder.ids)):
            return []  # the pass may have been for these, added since the last scan
        return self._cut_off(owner, parts, unused, moment, facts)

    def _parts(self, ids: frozenset[int], called: set[str]) -> list[str]:
        """The outermost called modules that the optimizer holds entirely, not all frozen."""
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
        if owner in self._reported:
            return []
        self._reported.add(owner)
        label, models = self.ledger.holders[owner].label, joined(parts)
        found = self.proof(
            facts,
            step=streak.first,
            subject=Subject(api=Families.OPTIMIZER_STEP, module=parts[0]),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=f"{label} steps, but no gradient ever reaches {models}",
            expected="the optimizer steps with gradients from backward()",
            observed=f"none in {streak.count} steps of {label}, though {models} runs with grad",
            evidence=[moment.call],
            optimizer=self.ledger.one_of_several(owner),
        )
        cause = (
            f"The output of {models} is cut off from every loss: by a detach(), a no_grad() block, "
            ".data, or a loss that does not use it."
        )
        fix = f"Remove what cuts {models} off from its loss."
        if not self._has_passed:
            cause = (
                "loss.backward() is never called: the call is missing, or lacks its parentheses."
            )
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
        event = facts.event
        label = self.ledger.holders[owner].label
        calls = [m.call for m in facts.moments if m.family == Families.BACKWARD][:1]
        names = self.ledger.names(run.lost)
        first = [run.first_call] if run.first_call is not None else []
        return self.found(
            event,
            step=step,
            stage="train",
            subject=Subject(
                api=Families.OPTIMIZER_STEP, variable=names[0] if len(names) == 1 else None
            ),
            symptom=Symptom.STEP_WITHOUT_GRADIENT,
            message=f"{label} steps while every gradient it could apply is None or zero, and the "
            f"gradients that backward() computes of {joined(names)} are cleared unused",
            expected="the optimizer steps with gradients from backward()",
            observed=f"{label} finds no gradient of {joined(names)} at its step",
            evidence=(*first, *calls),
            optimizer=self.ledger.one_of_several(owner),
        )


@dataclass(slots=True)
class _Run:
    """Empty steps of one optimizer in a row.

    Attributes:
        wasted: steps before which gradients were cleared unused.
    """

    wasted: int = 0
    first: int | None = None
    first_call: CallEvent | None = None
    reached: set[int] = field(default_factory=set)  # by backward since the last step
    lost: set[int] = field(default_factory=set)  # gradients lost in these steps


def _above(name: str) -> list[str]:
    """The paths of all modules that contain a variable or module: ``Net.fc1`` and ``Net``."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
