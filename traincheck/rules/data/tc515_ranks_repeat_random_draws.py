"""Data-parallel ranks draw the same random numbers for different data."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.rules.data.random_states import Page, RandomStateRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import DDP_INIT


class RanksRepeatRandomDraws(
    RandomStateRule, code="TC515", severity="info", aliases=("ranks-draw-the-same",)
):
    """ranks-repeat-random-draws: all ranks use the same dropout masks and noise.

    What it checks:
        Data-parallel ranks with different batches that draw random numbers in each step do not draw
        the same numbers.

    Why it matters:
        Dropout masks, noise and augmentation are the same for the n-th sample of each rank. The
        gradient averages over fewer draws than it could.

    Fires on:
        - One seed on all ranks and a model with dropout on the CPU. In four steps, all ranks draw
          and end with equal states of torch's generator.

    Stays quiet on:
        - Ranks that share their batches (tensor parallel, TC511).
        - Steps that draw no numbers.
        - Generators in different states.
        - Runs without DistributedDataParallel.
        - Generators of a GPU, which are not recorded.

    Fix:
        After building the model, seed with a number that depends on the rank: seed + rank.

    Options:
        steps: number of steps at whose ends states must have been equal.

    Source:
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """

    title = "All data-parallel ranks draw the same random numbers"
    likely_cause = "All ranks may have been seeded with the same number."
    fix = "Build the model with the same seed on all ranks, then seed with seed + rank."
    needs = Needs(calls=frozenset({DDP_INIT}), kinds=frozenset({"batch", "rng", "step"}))
    scope = "run"

    def __init__(self, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self._wrapping: set[int] = set()  # ranks
        self._equal = 0
        self._last: str | None = None

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            if event.api == DDP_INIT:
                self._wrapping.add(event.rank)
            return []
        return super().observe(event)

    def compare(self, event: StepEvent, pages: Mapping[int, Page]) -> list[Violation]:
        contents = [page.content for page in pages.values()]
        states = [page.state for _, page in sorted(pages.items())]
        if not pages.keys() <= self._wrapping or () in contents:
            return []
        digests = {state.fingerprint if state is not None else None for state in states}
        if len(set(contents)) < len(contents) or None in digests or len(digests) > 1:
            self.is_over = True  # they share batches, or draw different numbers
            return []
        self.triggered += 1
        digest = digests.pop()
        self._equal += digest != self._last
        self._last = digest
        if self._equal <= self.steps:
            return []
        self.is_over = True
        return [
            Violation(
                check_id=self.code,
                step=event.step,
                rank=event.rank,
                stage="train",
                subject=Subject(api="torch.random"),
                symptom=Symptom.ADVICE,
                message="data-parallel ranks draw the same random numbers in each step",
                expected="each rank draws its own numbers",
                observed=f"equal states of torch's generator after {self._equal} steps",
                evidence=tuple(state for state in states if state is not None)[:2],
            )
        ]
