"""Gradients that are still being accumulated are multiplied by a factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from traincheck.readings.provider import RunState, RunStates
from traincheck.readings.rescaled_gradients import RESCALED, RescaledGradients, Rescaling
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_CLOSE = 2e-3
_PROOF = 2  # times
_SHOWN = 3


class AccumulatedGradientsRescaled(BuiltInRule, code="TC085", severity="warning"):
    """accumulated-gradients-rescaled: gradients are scaled in the middle of an accumulation.

    What it checks:
        Between two backward passes that accumulate for one optimizer step, the gradients stay as
        they are. Norms of all gradients are compared before and after.

    Why it matters:
        A factor on accumulated gradients acts on all passes so far. If it is applied after each
        pass, the first passes count less and less, and the batch is no longer weighted evenly.

    Fires on:
        All gradients are multiplied by the same factor between backward passes of one line, or
        several times in a window. This needs two occurrences, e.g. of these kinds:

        - A pipeline schedule with scale_grads=True that runs several times for each optimizer step.
        - A division by the number of micro-batches or ranks inside the loop over micro-batches.

    Stays quiet on:
        - Factors that are applied once, after the last backward pass.
        - Clipping, and unscaling by GradScaler.
        - The running mean, whose k-th factor is k / (k + 1).
        - Gradients that decay from one optimizer step to the next.
        - Single gradients, and factors that differ between them.

    Fix:
        Divide the loss instead: (loss / n).backward(). Pass scale_grads=False to the pipeline
        schedule, or scale the gradients once before optimizer.step().

    Source:
        https://github.com/pytorch/torchtitan/issues/1733
    """

    title = "Gradients are scaled again and again while they accumulate"
    likely_cause = (
        "The accumulated gradients are scaled after some of the backward passes, not once at the "
        "end: by the loop, or by a library, such as a pipeline schedule with scale_grads=True that "
        "runs several times for each optimizer step."
    )
    fix = (
        "Divide the loss by the number of micro-batches in place of the gradients: (loss / n)"
        ".backward(), with scale_grads=False for a pipeline schedule. Or scale the gradients once, "
        "between the last backward() and optimizer.step()."
    )
    needs = RESCALED
    uses: ClassVar[Sequence[type[RunState]]] = (RescaledGradients,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    _found: list[Rescaling] = fresh(list)

    def bind(self, run_states: RunStates) -> None:
        self._run_states = run_states.of(RescaledGradients)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent):
            return ()
        self.triggered += self._run_states.windows
        found = [one for one in self._run_states.ended if _is_odd(one)]
        factors = [one.factor for one in found]
        self._found += [
            one
            for one in found
            if one.last.where == one.next.where
            or sum(abs(one.factor / other - 1) < _CLOSE for other in factors) > 1
        ]
        if len(self._found) < _PROOF or self.is_over:
            return ()
        self.is_over = True
        one = self._found[0]
        return self.found(
            one.event,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.WRONG_ORDER,
            message=f"after {one.passes} of the backward passes that accumulate for one optimizer "
            f"step, {joined(list(one.names), _SHOWN)} are multiplied by {one.factor:.4g}, and the "
            "next pass adds to that",
            expected="gradients that only backward() changes until the accumulation is complete",
            observed=f"all {len(one.names)} gradients are multiplied by {one.factor:.4g} in the "
            f"middle of the accumulation, {len(found)} times in one step",
            evidence=(one.last, one.next),
        )


def _is_odd(one: Rescaling) -> bool:
    """Whether the factor changes anything, and is not that of a running mean."""
    mean = one.passes / (one.passes + 1)
    return abs(one.factor - 1) > _CLOSE and abs(one.factor / mean - 1) > _CLOSE
