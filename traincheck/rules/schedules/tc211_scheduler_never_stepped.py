"""A scheduler was made and is never stepped."""

from __future__ import annotations

from collections import Counter

from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted

# Made beside another one, and stepped in the last epochs only
_BY_DESIGN = "torch.optim.swa_utils."
_SURE = 10  # times as many epochs: told although the run goes on
_AS_MANY = 2  # times fewer batches than of another loader, at most: not a probe or an evaluation


class SchedulerNeverStepped(StepRule, code="TC211"):
    """scheduler-never-stepped: a scheduler is made but scheduler.step() is never called.

    What it checks:
        An optimizer for which a scheduler was made sees a step of it before several epochs are
        over.

    Why it matters:
        The learning rate stays at its first value, for warm-up often a tiny one.

    Fires on:
        Three whole passes over a DataLoader, over each of those that give about as many batches,
        with an optimizer that steps, has a scheduler, and none that was stepped: told at the end of
        the run, as the first epochs may be meant to have one rate, or after ten times as many.

    Stays quiet on:
        Schedulers stepped by batch, epoch or at the end of three epochs, or whose rates are set in
        another way, as by ignite; iterators that are left before their end, as by
        next(iter(loader)); parts of a composed scheduler; training without a scheduler or without a
        DataLoader; steps not recorded.

    Fix:
        Call scheduler.step() after each step or epoch, whichever its schedule counts.

    Options:
        epochs: whole epochs without a step.

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler is made and never stepped"
    title_of_several = "The scheduler of {optimizer} is never stepped"
    likely_cause = "scheduler.step() is missing from the loop: {observed}{where}."
    fix = "Call scheduler.step() after each epoch or step, whichever the schedule counts."
    fix_of_several = (
        "Call step() of the scheduler of {optimizer} after each epoch or step, whichever its "
        "schedule counts."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(
            calls=frozenset({Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
            kinds=frozenset({"batch"}),
        )
    )

    def __init__(self, epochs: int = 3) -> None:
        super().__init__()
        self.epochs = epochs
        self._made: dict[str, CallEvent] = {}
        self._before: dict[str, tuple[Counter[str], Counter[str]]] = {}  # passes and batches
        self._first_step: dict[str, int | None] = {}
        self._waiting: dict[str, tuple[int, Violation]] = {}  # by optimizer, after how many epochs
        self._rates: dict[str, object] = {}  # by optimizer, while its scheduler is waited for

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._made.clear()
            self._waiting.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if moment.family == Families.SCHEDULER_CREATED and _BY_DESIGN not in moment.call.api:
                self._made[owner] = moment.call
                self._before.pop(owner, None)  # another phase of training may begin late
                self._first_step.pop(owner, None)
                self._rates.pop(owner, None)
            elif moment.family == Families.SCHEDULER_STEP:
                self._wait_no_more(owner)
            elif moment.family == Families.OPTIMIZER_STEP and owner in self._made:
                found += self._step(owner, moment, facts)
        return found

    def _wait_no_more(self, owner: str) -> None:
        self.triggered += self._made.pop(owner, None) is not None
        self._waiting.pop(owner, None)

    def _step(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        rate = facts.event.lr.get(owner)
        if self._rates.setdefault(owner, rate) != rate:
            self._wait_no_more(owner)  # something sets what the schedule tells, or the rate by hand
        if owner not in self.ledger.holders or owner not in self._made:
            return []
        epochs = self._epochs_of(owner)
        if epochs:
            self._first_step.setdefault(owner, facts.event.step)
        if epochs < self.epochs:
            return []
        if self._waiting.get(owner, (0,))[0] != epochs:
            self._waiting[owner] = epochs, self._violation(owner, epochs, moment, facts)
        if epochs < _SURE * self.epochs:
            return []
        self.triggered += 1
        del self._made[owner]
        return [self._waiting.pop(owner)[1]]

    def finish(self) -> list[Violation]:
        return [violation for _, violation in self._waiting.values()]

    def _violation(self, owner: str, epochs: int, moment: Moment, facts: StepFacts) -> Violation:
        made = self._made[owner]
        name = made.api.split(".")[-2]
        label = self.ledger.holders[owner].label
        passes = counted(epochs, "epoch")
        return proof(
            (self.code, Symptom.SCHEDULE, self.ledger.one_of_several(owner)),
            facts,
            step=self._first_step.get(owner),
            subject=Subject(api=Families.SCHEDULER_STEP),
            message=f"{name}, made for {label}, is never stepped in {passes}",
            expected=f"{name}.step() once a step or once an epoch",
            observed=f"no step of {name} in {passes}",
            evidence=(made, moment.call),
        )

    def _epochs_of(self, owner: str) -> int:
        """Whole passes since its first step, over each loader that feeds training.

        One of several may be short, and begin anew again and again within an epoch of another.
        """
        passes = self.ledger.passes
        now = (passes.ended, passes.batches)
        before = self._before.setdefault(owner, (now[0].copy(), now[1].copy()))
        batches = now[1] - before[1]
        most = max(batches.values(), default=0)
        feeding = [loader for loader, count in batches.items() if count * _AS_MANY >= most]
        return min((now[0][one] - before[0][one] for one in feeding), default=0)
