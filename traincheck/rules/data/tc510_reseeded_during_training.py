"""The loop sets the same seed repeatedly. Requires proof that draws repeat."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class ReseededDuringTraining(EventRule, code="TC510", aliases=("seeded-again",)):
    """reseeded-during-training: training reseeds torch with the same number and repeats its draws.

    What it checks:
        A step that seeds torch's generator like an earlier step does not end with the generator
        state of that step. A step that draws nothing does not count.

    Why it matters:
        Dropout masks, augmentations, noise and the order of a shuffled loader repeat. The model
        sees a fraction of the variety that the code suggests.

    Fires on:
        - torch.manual_seed(seed) with one number inside the loop or at the start of each epoch.

    Stays quiet on:
        - Seeding once.
        - A different seed for every epoch or step.
        - fork_rng() around a seed.
        - Seeds set during evaluation.
        - Training that draws no random numbers.
        - Several trainings in one program with the same seed, whether their optimizers are created
          then or earlier.

    Fix:
        Seed once before training, or with a number that depends on the epoch.

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/issues/20412
    """

    title = "Training seeds torch again with the same number"
    likely_cause = "torch.manual_seed() with a constant may be called inside the loop: {observed}."
    fix = "Seed once before the loop, or use a seed that depends on the epoch or step."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"optimizer", "rng", "step"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._seeded: RngEvent | None = None
        self._left: RngEvent | None = None
        self._owners: set[str] = set()  # optimizers that stepped in this step
        # (seed, state at the end, optimizers) -> step
        self._seen: dict[tuple[int, str, frozenset[str]], int] = {}
        self._found: Violation | None = None  # reported unless another training starts next step
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, RngEvent) and event.source == "torch":
            if event.is_step_end:
                self._left = event
            elif event.change == "seed" and event.stage != "eval" and event.step is not None:
                self._seeded = event
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            self._owners.add(str(event.owner))
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self._seen.clear()  # another training, which should draw like the one before
                self._found = None
        elif isinstance(event, StepEvent):
            return self._end(event)
        return []

    def _end(self, event: StepEvent) -> list[Violation]:
        found, self._found = self._found, None
        seeded, left, owners = self._seeded, self._left, frozenset(self._owners)
        self._seeded = self._left = None
        self._owners.clear()
        if self._is_reported:
            return []
        if found is not None:
            self._is_reported = True
            return [found]
        if seeded is not None and left is not None and event.recorded:
            self._found = self._step(seeded, left, event, owners)
        return []

    def _step(
        self, seeded: RngEvent, left: RngEvent, event: StepEvent, owners: frozenset[str]
    ) -> Violation | None:
        self.triggered += 1
        if seeded.seed is None or left.fingerprint is None or seeded.fingerprint is None:
            return None
        if left.fingerprint == seeded.fingerprint:
            return None  # nothing was drawn
        key = (seeded.seed, left.fingerprint, owners)
        first = self._seen.setdefault(key, event.step or 0)
        if first == event.step or not owners:
            return None
        observed = f"steps {first} and {event.step} both seed with {seeded.seed} and draw the same"
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="train",
            subject=Subject(api="torch.manual_seed"),
            symptom=Symptom.REPEATED_DATA,
            message=f"torch.manual_seed is called again with the same number: {observed}",
            expected="random numbers that differ from step to step",
            observed=observed,
            evidence=(seeded, left),
        )
