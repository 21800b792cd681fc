"""A scheduler replaces each learning rate that the program writes before an update uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import OverwrittenRates
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_TIMES = 3


class RateOverwrittenByScheduler(EventRule, code="TC069"):
    """rate-overwritten-by-scheduler: a scheduler replaces the rates that the program writes.

    What it checks:
        Learning rates that the program writes are used by an update before a scheduler computes new
        ones.

    Why it matters:
        LambdaLR, OneCycleLR, CyclicLR and CosineAnnealingWarmRestarts compute the rate from the
        base rate. A rate that was written in between has no effect at all.

    Fires on:
        Three times, the rate is written between optimizer.step() and scheduler.step().

    Stays quiet on:
        - Rates that an update uses, such as a warm-up by hand while a scheduler waits.
        - Schedulers that multiply the present rate.

    Fix:
        Keep one of the two: compute the rate in the scheduler, or write it and drop the scheduler.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler overwrites the learning rates that the program sets"
    likely_cause = (
        "The program sets the rate between optimizer.step() and scheduler.step(){where}, which "
        "computes it from the base rate."
    )
    fix = (
        "Compute the rate in the scheduler, or drop the scheduler. A write counts only after "
        "scheduler.step() and before optimizer.step()."
    )
    needs = Needs(calls=frozenset({Families.SCHEDULER_STEP})) | needs_of(OverwrittenRates)

    def __init__(self) -> None:
        super().__init__()
        self._times: Counter[str] = Counter()

    def judge(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, CallEvent):
            self.triggered += (event.family or event.api) == Families.SCHEDULER_STEP
        found = observed(event, OverwrittenRates)
        if found is None:
            return ()
        self._times[found.owner] += 1
        if self._times[found.owner] != _TIMES:
            return ()
        name = found.scheduler.rpartition(".")[2]
        triples = zip(found.written, found.used, found.scheduled)
        written, used, scheduled = next(t for t in triples if t[0] not in t[1:])
        violation = self.violation(
            event,
            subject=Subject(api=Families.SCHEDULER_STEP, variable=found.owner),
            symptom=Symptom.SCHEDULE,
            message=f"{name} overwrites the rates that the program writes to {found.owner}",
            expected="an update uses the rate that was written",
            observed=(
                f"a rate of {written:g} was written after the update with {used:g}, and "
                f"{name}.step() set {scheduled:g}; {_TIMES} times so far"
            ),
        )
        return [violation]
