"""A checkpointed segment computes other values in the backward pass than in the forward."""

from __future__ import annotations

from collections import Counter

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import DifferingSegment, Recomputation
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short

_STEPS = 2  # steps in which a segment differs
_API = "torch.utils.checkpoint.checkpoint"


class RecomputationDiffers(EventRule, code="TC718"):
    """recomputation-differs: activation checkpointing recomputes other values.

    What it checks:
        The second pass through a segment of torch.utils.checkpoint, in the backward pass, computes
        the same values as the first pass.

    Why it matters:
        The loss comes from the first pass, the gradients from the second. With another dropout mask
        or another state, they are gradients of a different function. The shapes are the same, so no
        error is raised, and the model trains worse than without checkpointing.

    Fires on:
        Each case needs two steps in which more than 2 % of the compared elements of a segment
        differ by more than rounding.

        - Dropout with preserve_rng_state=False.
        - Random numbers of NumPy, Python or a torch.Generator, whose states are not restored.
        - A counter, cache or buffer that the first pass changed.
        - An input that is written to before the backward pass.

    Stays quiet on:
        - Rounding differences, e.g. of kernels that are not deterministic, or that differ without
          grad.
        - Segments that are not recomputed.
        - Values after the last tensor that is needed, where the second pass stops early.
        - Memory that both passes read, e.g. running statistics of batch norms, which both passes
          update.
        - Selective checkpointing (context_fn).
        - Compiled models.
        - Segments after the first 16 of a step.
        - Steps that are not compared.

    Fix:
        Leave preserve_rng_state=True, and draw random numbers from torch's global generators. Do
        not change anything that a segment reads before the backward pass: no counters or caches
        inside it.

    Source:
        https://docs.pytorch.org/docs/stable/checkpoint.html
    """

    title = "A checkpointed segment is recomputed with other values"
    likely_cause = "{observed}, so the gradients are not those of the loss."
    fix = (
        "Leave preserve_rng_state=True, draw random numbers from torch's global generators, and "
        "let the segment change nothing that it reads."
    )
    needs = needs_of(Recomputation)
    _steps: Counter[tuple[str, str | None]] = fresh(Counter)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, Recomputation)
        if found is None:
            return []
        self.triggered += 1
        differing = {(segment.function, segment.where): segment for segment in found.differing}
        self._steps.update(differing.keys())
        return [
            self._differs(event, segment)
            for place, segment in differing.items()
            if self._steps[place] == _STEPS
        ]

    def _differs(self, event: Event, segment: DifferingSegment) -> Violation:
        line = short(segment.where)
        place = f" ({line})" if line else ""
        what = (
            f"{segment.share:.0%} of the elements that {segment.function}{place} recomputes differ"
        )
        if not segment.preserves_rng:
            what += " (preserve_rng_state=False)"
        return self.violation(
            event,
            subject=Subject(api=_API),
            symptom=Symptom.WRONG_VALUE,
            message=f"{segment.function}{place} is recomputed with other values",
            expected="the values of the forward pass",
            observed=what,
        )
