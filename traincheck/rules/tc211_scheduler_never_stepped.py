"""TC211: a scheduler was made and is never stepped."""

from __future__ import annotations

from traincheck.rules._ledger import DISCOVERY, GRADIENTS, Moment, StepFacts, StepMonitor, proof
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.words import counted

# Made beside another one, and stepped in the last epochs only
_BY_DESIGN = "torch.optim.swa_utils."


class SchedulerNeverStepped:
    """TC211 scheduler-never-stepped: a scheduler is made but scheduler.step() is never called.

    What it checks:
        An optimizer for which a scheduler was made sees a step of it before several epochs are
        over.

    Why it matters:
        The learning rate stays at its first value, for warm-up often a tiny one.

    Fires on:
        Three whole passes over a DataLoader with an optimizer that steps, has a scheduler, and none
        that was stepped.

    Stays quiet on:
        Schedulers stepped by batch, epoch or at the end of three epochs; parts of a composed
        scheduler; training without a scheduler or without a DataLoader; steps not recorded.

    Fix:
        Call scheduler.step() after each step or epoch, whichever its schedule counts.

    Options:
        epochs: whole epochs without a step.

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    info = CheckInfo(
        check_id="TC211",
        kind="rule",
        code="TC211",
        severity="warning",
        title="A scheduler is made and never stepped",
        likely_cause="scheduler.step() is missing from the loop: {observed}{where}.",
        fix="Call scheduler.step() after each epoch or step, whichever the schedule counts.",
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
        self.epochs = epochs

    def monitor(self) -> UnusedSchedule:
        return UnusedSchedule(self.epochs)


class UnusedSchedule(StepMonitor):
    """Waits for the first step of a scheduler of each optimizer.

    Args:
        epochs: how long.
    """

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self._epochs = epochs
        self._made: dict[str, CallEvent] = {}
        self._first_epoch: dict[str, int] = {}
        self._first_step: dict[str, int | None] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._made.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if moment.family == Families.SCHEDULER_CREATED and _BY_DESIGN not in moment.call.api:
                self._made[owner] = moment.call
                self._first_epoch.pop(owner, None)  # another phase of training may begin late
                self._first_step.pop(owner, None)
            elif moment.family == Families.SCHEDULER_STEP:
                self.triggered += self._made.pop(owner, None) is not None
            elif moment.family == Families.OPTIMIZER_STEP and owner in self._made:
                found += self._step(owner, moment, facts)
        return found

    def _step(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        if moment.batch is None or owner not in self.ledger.holders:
            return []
        epoch = moment.batch[1]
        first = self._first_epoch.setdefault(owner, epoch)
        if epoch > first:
            self._first_step.setdefault(owner, facts.event.step)
        if epoch - first < self._epochs:
            return []
        self.triggered += 1
        made = self._made.pop(owner)
        name = made.api.split(".")[-2]
        label = self.ledger.holders[owner].label
        epochs = counted(epoch - first, "epoch")
        return [
            proof(
                ("TC211", Symptom.SCHEDULE),
                facts,
                step=self._first_step.get(owner),
                subject=Subject(api=Families.SCHEDULER_STEP),
                message=f"{name}, made for {label}, is never stepped in {epochs}",
                expected=f"{name}.step() once a step or once an epoch",
                observed=f"no step of {name} in {epochs}",
                evidence=(made, moment.call),
            )
        ]
