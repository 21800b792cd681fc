"""A resume within an epoch skips batches of another order. Compares indices."""

from __future__ import annotations

from traincheck.readings.resumptions import Resumed, Resumptions
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted


class DataOrderDiffersAfterResume(
    BuiltInRule, code="TC607", severity="error", aliases=("epoch-resumed-in-another-order",)
):
    """data-order-differs-after-resume: a resumed epoch trains samples again.

    What it checks:
        A resume from a file saved within an epoch may skip the first batches of the new loader. The
        skipped batches are those that were trained on before.

    Why it matters:
        The order is drawn again, so other batches are skipped. In this epoch some samples come
        twice and others never. After many restarts the model has seen a biased part of the data.

    Fires on:
        - A shuffling loader whose generator is not restored, and a loop that skips as many batches
          as were done.
        - accelerate.skip_first_batches with a sampler that draws another order.

    Stays quiet on:
        - Resumes at the start of an epoch.
        - Epochs that are restarted.
        - Orders that are restored.
        - Samplers that draw with replacement.

    Fix:
        Save the state of the sampler's generator at the start of the epoch and restore it, or seed
        it with the epoch.

    Source:
        https://github.com/huggingface/accelerate/pull/4233,
        https://github.com/huggingface/transformers/pull/40691
    """

    title = "A resumed epoch skips batches of another order"
    likely_cause = (
        "The generator of the sampler may not be restored, so that the order of the epoch was "
        "drawn again before its first batches were skipped."
    )
    fix = (
        "Restore the sampler's generator to its state at the start of the epoch, or seed it with "
        "the epoch."
    )
    needs = Needs(
        calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch", "checkpoint", "step"})
    )
    scope = "run"

    def __init__(self) -> None:
        super().__init__()
        self._resumptions = Resumptions()
        self._reported: set[tuple[int, str, int]] = set()  # rank, stream and number of a load

    def observe(self, event: Event) -> list[Violation]:
        return [found for one in self._resumptions.observe(event) for found in self._judge(one)]

    def _judge(self, one: Resumed) -> list[Violation]:
        self.triggered += 1
        load = (one.load.rank, one.load.stream, one.load.seq)
        if not one.again or load in self._reported:
            return []
        self._reported.add(load)
        return [self._violation(one)]

    def _violation(self, one: Resumed) -> Violation:
        samples = counted(one.again, "sample")
        return Violation(
            check_id=self.code,
            step=one.batch.step,
            rank=one.batch.rank,
            stage="train",
            subject=Subject(variable=one.batch.loader),
            symptom=Symptom.REPEATED_DATA,
            message=(
                f"{one.load.path} was saved after {one.done} batches of an epoch; after the "
                f"resume, {one.batch.loader} returns samples of those batches again"
            ),
            expected="the skipped batches are those that were trained on before",
            observed=f"{samples} of this batch were trained on before in the same epoch",
            evidence=(one.batch, one.load),
        )
