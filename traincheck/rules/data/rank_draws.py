"""Random numbers of ranks: states that drift apart, or are the same where they should differ."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, RngEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import DDP_INIT

_MOST_OPEN = 256


@dataclass(slots=True)
class Page:
    """One rank in a step. content: fingerprints of the samples in its batches."""

    content: tuple[str, ...] = ()
    state: RngEvent | None = None


class RandomStateRule(BuiltInRule):
    """Compares the steps that all ranks have ended. is_over: whether the check has finished."""

    is_over = False
    _open: dict[int, Page] = fresh(lambda: defaultdict(Page))
    _ended: dict[int | None, dict[int, Page]] = fresh(lambda: defaultdict(dict))
    _ranks: set[int] = fresh(set)

    def observe(self, event: Event) -> list[Violation]:
        if self.is_over or event.step is None:
            return []
        page = self._open[event.rank]
        self._ranks.add(event.rank)
        if isinstance(event, BatchEvent):
            page.content += tuple(event.samples)
        elif isinstance(event, RngEvent):
            if event.source == "torch" and event.is_step_end:
                page.state = event
        elif isinstance(event, StepEvent):
            page = self._open.pop(event.rank, Page())
            if not event.recorded:
                self.is_over = True
                return []
            if not event.complete:
                return []
            pages = self._ended[event.step]
            pages[event.rank] = page
            if len(pages) < max(2, len(self._ranks)):
                self.is_over = len(self._ended) > _MOST_OPEN
                return []
            del self._ended[event.step]
            return self.compare(event, pages)
        return []

    @abstractmethod
    def compare(self, event: StepEvent, pages: Mapping[int, Page]) -> list[Violation]:
        """Return the violations of a step that all ranks have ended; pages: by rank."""


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
    steps: int = 2
    _equal = 0
    _last: str | None = None

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
        return self.found(
            event,
            stage="train",
            subject=Subject(api="torch.random"),
            symptom=Symptom.OUT_OF_STEP,
            message="ranks with the same batches no longer draw the same random numbers",
            expected="equal states of torch's generator on all ranks, as before",
            observed=observed,
            evidence=tuple(state for state in states if state is not None)[:2],
        )


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
    steps: int = 4
    _wrapping: set[int] = fresh(set)  # ranks
    _equal = 0
    _last: str | None = None

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
        return self.found(
            event,
            stage="train",
            subject=Subject(api="torch.random"),
            symptom=Symptom.ADVICE,
            message="data-parallel ranks draw the same random numbers in each step",
            expected="each rank draws its own numbers",
            observed=f"equal states of torch's generator after {self._equal} steps",
            evidence=tuple(state for state in states if state is not None)[:2],
        )
