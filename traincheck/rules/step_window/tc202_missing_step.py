"""Gradients are computed, but no optimizer step ever applies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from traincheck.readings.distributed.rank_steps import FIRST, LATER, LATER_AT_END
from traincheck.readings.optimizers import UPDATED
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined


@dataclass(slots=True)
class Lapse:
    """Steps in a row without an update.

    Attributes:
        count: the number of steps.
        first: violations of the first step.
        latest: violations of the last step.
    """

    count: int = 0
    first: list[Violation] = field(default_factory=list)
    latest: list[Violation] = field(default_factory=list)

    def add(self, found: list[Violation], needed: int) -> list[Violation]:
        """Add a step and return the violations that are certain now.

        Args:
            found: the violations of the step.
            needed: number of steps that prove the fault while the run goes on.
        """
        self.count += 1
        if self.count >= needed:
            return found if self.count > needed else self.first + found
        self.first, self.latest = self.first or found, found
        return []

    def ends(self, least: int, most: int) -> list[Violation]:
        """The violations that the end of a run proves.

        Args:
            least: number of steps that prove the fault at the end.
            most: number of steps after which it was already reported.
        """
        return self.first + self.latest if least <= self.count < most else []


_CONFIRMED_AT_END = 2  # the run is over: no update will come
_CONFIRMED_BESIDE = 30  # while another optimizer steps: its turn may come late
_CONFIRMED_AS_SUM = 64  # backward passes of a single step: fewer may be accumulation


class MissingStep(StepRule, code="TC202", severity="error"):
    """missing-step: gradients are computed but no optimizer step applies them.

    What it checks:
        An optimizer whose parameters get gradients steps, directly or through GradScaler.

    Why it matters:
        Nothing is learned. With dropout and shuffled batches the loss still moves enough to look
        like training.

    Fires on:
        - Ten complete steps in a row, or two if the run ends earlier, in which no optimizer steps
          and backward() reaches parameters of an optimizer that has never stepped.
        - A run in which an optimizer never steps although others do, its zero_grad() is called in
          at least 30 steps, and gradients arrive. Example: a GAN with opt_g.step() written for
          opt_d.step().
        - Steps without an update after steps with one: three hundred in a row, or thirty in a row
          at the end of the run. In these steps the same line calls backward(), and zero_grad()
          clears the gradients.
        - A run that ends in its first step after at least 64 backward(), e.g. a condition for the
          update that is never true.

    Stays quiet on:
        - Accumulation over several backward().
        - The gradients of several tasks, cleared and computed one after the other for one step.
        - One of two optimizers that waits for its turn.
        - backward() for saliency or Fisher information after training, called in another line.
        - Updates by hand, with or without an optimizer beside them.
        - An optimizer around another one that steps (SAM).
        - Steps that GradScaler skips, or that the program skips occasionally.
        - A run that ends in the first accumulation.

    Fix:
        Call optimizer.step() after loss.backward(), or scaler.step(optimizer) with GradScaler.

    Source:
        https://pytorch.org/tutorials/beginner/basics/optimization_tutorial.html (the right loop)
    """

    title = "Gradients are computed but no optimizer step applies them"
    title_of_several = "No step of {optimizer} applies the computed gradients"
    likely_cause = "optimizer.step() is missing from the loop or is never reached: {observed}."
    fix = "Call optimizer.step() after loss.backward(){where} in every iteration."
    fix_of_several = (
        "Call step() of {optimizer} after the backward(){where} that computes its gradients."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALER_STEP}), states=frozenset({"parameter@step"}))
    )
    _stepped: set[str] = fresh(set)
    _never = fresh(Lapse)  # optimizers that never stepped
    _later = fresh(Lapse)  # optimizers that have stepped
    # By optimizer that never stepped: number of steps it was prepared for, first violations
    _ready: dict[str, tuple[int, list[Violation]]] = fresh(dict)
    _zeroed: set[str] = fresh(set)  # in the previous step
    _lines: set[str | None] = fresh(set)  # lines that call backward() before updates
    _longest = 0  # longest lapse that an update ended
    _sum: list[Violation] = fresh(list)  # violations of a first step that is not complete
    # Steps that changed a parameter of an optimizer that never stepped
    _moved: Counter[int] = fresh(Counter)

    def judge(self, facts: StepFacts) -> list[Violation]:
        counters = facts.event.counters
        families = {moment.family for moment in facts.moments}
        stepping = (Families.OPTIMIZER_STEP, Families.SCALER_STEP)
        self._stepped |= {str(m.call.owner) for m in facts.moments if m.family in stepping}
        for owner, holder in self.ledger.holders.items():
            if owner not in self._stepped:
                self._moved.update(facts.changed.intersection(holder.names))
        self._note_ready(facts)
        is_updated = (
            counters.get("optimizer_step", 0)
            or counters.get("scaler_step", 0)
            or not families.isdisjoint(stepping)
        )
        # Calls are also counted in steps that are not recorded. Without counters nothing is known.
        is_unknown = facts.is_gap and not counters
        if is_updated or is_unknown:
            self.triggered += bool(facts.reached)
            self._longest = max(self._longest, self._later.count)
            self._never, self._later = Lapse(), Lapse()
            self._lines |= {m.call.where for m in facts.moments if m.family == Families.BACKWARD}
            return []
        if not facts.is_complete:
            self._sum = [] if facts.is_gap or self._stepped else self._summed(facts)
            return []
        return self._wait(facts) + self._stopped(facts)

    def finish(self) -> list[Violation]:
        """Report after fewer steps: the run ended without an update."""
        needed = max(LATER_AT_END, 2 * self._longest)
        late = self._never.ends(_CONFIRMED_AT_END, FIRST) or self._later.ends(needed, LATER)
        beside = [
            violation
            for owner, (count, first) in sorted(self._ready.items())
            if owner not in self._stepped and count >= _CONFIRMED_BESIDE and self._stepped
            for violation in first
        ]
        return late or beside or self._sum

    def _is_by_hand(self, identity: int) -> bool:
        """Whether the program updates the parameter itself. Clipping weights changes them once."""
        return self._moved[identity] >= UPDATED

    def _note_ready(self, facts: StepFacts) -> None:
        """Count steps in which an optimizer's gradients are cleared and computed, as for a step."""
        known = self.ledger.holders
        served = {i for owner in self._stepped & known.keys() for i in known[owner].names}
        zeroed = {str(m.call.owner) for m in facts.moments if m.family == Families.ZERO_GRAD}
        waiting = ((zeroed | self._zeroed) - self._stepped) & known.keys()
        self._zeroed = zeroed if facts.is_complete else set()
        for owner in waiting if facts.is_complete else ():
            holder = known[owner]
            ready = facts.reached & (holder.names.keys() - served)
            victims = {i for i in ready if not self._is_by_hand(i)}
            if not victims:
                continue
            count, first = self._ready.get(owner, (0, []))
            if not first:
                first = self._violations(victims, [owner], facts)
            self._ready[owner] = (count + 1, first)
            self._zeroed.discard(owner)

    def _stopped(self, facts: StepFacts) -> list[Violation]:
        """Violations of optimizers that stopped stepping while gradients still arrive."""
        known = self.ledger.holders
        zeroed = {str(m.call.owner) for m in facts.moments if m.family == Families.ZERO_GRAD}
        idle = {owner: known[owner] for owner in sorted(zeroed & self._stepped & known.keys())}
        came = frozenset[int]().union(
            *(
                m.reached
                for m in facts.moments
                if m.family == Families.BACKWARD and m.call.where in self._lines
            )
        )
        victims = {i for holder in idle.values() for i in holder.names} & came
        if not victims:
            return []
        owners = [key for key, h in idle.items() if not victims.isdisjoint(h.names)]
        found = self._violations(victims, owners, facts, is_later=True)
        return self._later.add(found, LATER)

    def _summed(self, facts: StepFacts) -> list[Violation]:
        """Violations of an incomplete first step with many backward passes and no update."""
        waiting = self.ledger.holders
        victims = {i for holder in waiting.values() for i in holder.names} & facts.reached
        if not victims or facts.event.counters.get("backward", 0) < _CONFIRMED_AS_SUM:
            return []
        owners = [key for key, h in waiting.items() if not victims.isdisjoint(h.names)]
        return self._violations(victims, owners, facts)

    def _wait(self, facts: StepFacts) -> list[Violation]:
        waiting = {key: h for key, h in self.ledger.holders.items() if key not in self._stepped}
        reached = {i for holder in waiting.values() for i in holder.names} & facts.reached
        self.triggered += bool(reached)
        victims = {i for i in reached if not self._is_by_hand(i)}
        if not victims:
            return []
        owners = [key for key, h in waiting.items() if not victims.isdisjoint(h.names)]
        found = self._violations(victims, owners, facts)
        return self._never.add(found, FIRST)

    def _violations(
        self,
        victims: AbstractSet[int],
        owners: Sequence[str],
        facts: StepFacts,
        *,
        is_later: bool = False,
    ) -> list[Violation]:
        """Violations of the victims.

        Args:
            victims: parameters whose gradients no step applies.
            owners: the optimizers that hold them.
            facts: the facts of the step.
            is_later: whether these optimizers had an update before.
        """
        ledger = self.ledger
        labels = ", ".join(ledger.holders[owner].label for owner in owners)
        models = joined(sorted({ledger.name(i).partition(".")[0] for i in victims}))
        others = sorted(self._stepped & ledger.holders.keys() - set(owners))
        beside = one = ""
        if others:
            label = ledger.holders[others[0]].label
            beside = f", while {label} steps" if len(others) == 1 else ", while others step"
            one = " or ".join(map(ledger.one_of_several, owners))
        calls = [
            m.call
            for m in facts.moments
            if m.family == Families.BACKWARD and not victims.isdisjoint(m.reached)
        ]
        is_one = len(owners) == 1
        has, step = ("has", "steps") if is_one else ("have", "step")
        never = f"no longer {step}" if is_later else f"{has} never stepped"
        return [
            self.proof(
                facts,
                subject=Subject(api=Families.OPTIMIZER_STEP, variable=name),
                symptom=Symptom.MISSING_STEP,
                message=f"backward() computes gradients for {name}, but {labels} {never}",
                expected="a step of the optimizer after backward()",
                observed=f"{labels} {'holds' if is_one else 'hold'} parameters of {models} that "
                f"get gradients, but {never}{beside}",
                evidence=(*calls[:1], facts.event),
                optimizer=one,
            )
            for name in self.ledger.names(victims)
        ]
