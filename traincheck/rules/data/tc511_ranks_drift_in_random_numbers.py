"""Ranks that process the same data start to draw different random numbers."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.rules.data.random_states import Page, RandomStateRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class RanksDriftInRandomNumbers(RandomStateRule, code="TC511"):
    """ranks-drift-in-random-numbers: one rank of a tensor-parallel group draws more numbers.

    What it checks:
        Ranks with the same batches keep equal states of torch's generator, once these were equal at
        the ends of several steps in which they drew.

    Why it matters:
        Tensor-parallel ranks hold replicated activations. If their generators differ, dropout masks
        of equal activations differ, and soon the weights do too.

    Fires on:
        - A rank that alone draws a seed for its loader, or takes a branch that draws.

    Stays quiet on:
        - Data parallelism, where ranks have different batches.
        - Generators that were never equal, or that are not drawn from.
        - Data that does not come from a DataLoader.

    Fix:
        Draw on all ranks, or from a separate generator. Fork the state around code that only one
        rank runs.

    Options:
        steps: number of steps at whose ends states must have been equal.

    Source:
        https://github.com/NVIDIA/Megatron-LM/pull/206
    """

    title = "Random generators of ranks that share their data are no longer equal"
    likely_cause = "One rank has drawn more numbers than the others: {observed}."
    fix = "Draw on all ranks, or from another generator if only one rank draws."
    needs = Needs(kinds=frozenset({"batch", "rng", "step"}))
    scope = "run"

    def __init__(self, steps: int = 2) -> None:
        super().__init__()
        self.steps = steps
        self._equal = 0
        self._last: str | None = None

    def compare(self, event: StepEvent, pages: Mapping[int, Page]) -> list[Violation]:
        contents = {page.content for page in pages.values()}
        if contents == {()}:
            return []
        states = [page.state for _, page in sorted(pages.items())]
        if len(contents) > 1 or None in states:
            self.is_over = True  # the data is sharded
            return []
        digests = [state.fingerprint for state in states if state is not None]
        self.triggered += 1
        if len(set(digests)) == 1:
            self._equal += digests[0] != self._last
            self._last = digests[0]
            return []
        self.is_over = True
        if self._equal <= self.steps:
            return []
        observed = ", ".join(
            f"rank {rank}: {str(digest).rpartition(':')[2][:8]}"
            for rank, digest in zip(sorted(pages), digests)
        )
        return [
            Violation(
                check_id=self.code,
                step=event.step,
                rank=event.rank,
                stage="train",
                subject=Subject(api="torch.random"),
                symptom=Symptom.OUT_OF_STEP,
                message="ranks with the same batches no longer draw the same random numbers",
                expected="equal states of torch's generator on all ranks, as before",
                observed=observed,
                evidence=tuple(state for state in states if state is not None)[:2],
            )
        ]
