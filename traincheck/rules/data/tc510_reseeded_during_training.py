"""The same seed again and again in the loop. Asks for proof that draws repeat."""

from __future__ import annotations

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class ReseededDuringTraining(EventRule, code="TC510", aliases=("seeded-again",)):
    """reseeded-during-training: training seeds torch with the same number and draws the same again.

    What it checks:
        A step that seeds torch's generator with a number that an earlier step used does not leave
        it in the state in which that step left it, unless nothing was drawn.

    Why it matters:
        Dropout masks, augmentations, noise and the order of a shuffled loader repeat. The model
        sees a fraction of the variety that the code seems to ask for.

    Fires on:
        torch.manual_seed(seed) inside the loop or at the head of each epoch, with one number.

    Stays quiet on:
        Seeding once; another seed for every epoch or step; fork_rng() around a seed; seeds set
        during evaluation; training that draws nothing; several trainings in one program, each
        seeded with the same number, whether their optimizers are made then or were before.

    Fix:
        Seed once before training, or with a number that contains the epoch.

    Source:
        https://github.com/Lightning-AI/pytorch-lightning/issues/20412
    """

    title = "Training seeds torch again with the same number"
    likely_cause = "torch.manual_seed() with a constant stands inside the loop: {observed}."
    fix = "Seed once before the loop, or use a seed that contains the epoch or step."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"optimizer", "rng", "step"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._seeded: RngEvent | None = None
        self._left: RngEvent | None = None
        self._owners: set[str] = set()  # optimizers that stepped in this step
        # Seed, state at the end and optimizers -> step
        self._seen: dict[tuple[int, str, frozenset[str]], int] = {}
        self._found: Violation | None = None  # told if no other training begins in the next step
        self._is_told = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, RngEvent) and event.source == "torch":
            if event.change == "state":
                self._left = event
            elif event.stage != "eval" and event.step is not None:
                self._seeded = event
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            self._owners.add(str(event.owner))
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self._seen.clear()  # another training, which is to draw as the one before
                self._found = None
        elif isinstance(event, StepEvent):
            return self._end(event)
        return []

    def _end(self, event: StepEvent) -> list[Violation]:
        found, self._found = self._found, None
        seeded, left, owners = self._seeded, self._left, frozenset(self._owners)
        self._seeded = self._left = None
        self._owners.clear()
        if self._is_told:
            return []
        if found is not None:
            self._is_told = True
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
