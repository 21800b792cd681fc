"""A model writes to its own parameters while it is evaluated."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import EvalWeights, EvalWrites
from traincheck.schema.observations.reading import observed


class WeightsModifiedInEval(
    EventRule, code="TC111", severity="error", aliases=("written-in-evaluation",)
):
    """weights-modified-in-eval: each forward pass in evaluation changes trained parameters.

    What it checks:
        A forward pass in evaluation mode and without grad leaves the parameters that an optimizer
        updates unchanged.

    Why it matters:
        The evaluated weights depend on how many batches came before, and training continues with
        weights that no optimizer step produced. Without grad, autograd does not reject such a
        write.

    Fires on:
        - Two forward passes of one evaluation that both change the same parameter. Causes are
          in-place operations on the parameter or a view of it (+=, mul_, index_fill_), or on its
          .data.

    Stays quiet on:
        - A parameter that the first pass initializes or normalizes.
        - Weights that are swapped between passes.
        - Test-time training, whose forward steps an optimizer.
        - Forward passes in training mode.
        - Buffers.
        - Parameters on a GPU.

    Fix:
        Use the operation that returns a new tensor, or clone the parameter first.

    Source:
        https://github.com/intel/ipex-llm/issues/2838,
        https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    title = "Evaluation writes to parameters: {variables}"
    likely_cause = (
        "The forward pass modifies {variables} or a view of it in place, which autograd allows "
        "without grad."
    )
    fix = "Use the out-of-place operation, or clone the parameter first."
    needs = needs_of(EvalWeights, EvalWrites)

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        self.triggered += observed(event, EvalWeights, EvalWrites) is not None
        wrote = observed(event, EvalWrites)
        if wrote is None:
            return []
        new = [name for name in wrote.names if name not in self._reported]
        self._reported.update(new)
        return [self._violation(event, wrote.model, name) for name in new]

    def _violation(self, event: Event, model: str, name: str) -> Violation:
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="eval",
            subject=Subject(module=model, variable=name),
            symptom=Symptom.SILENT_WRITE,
            message=f"each forward pass of {model} in evaluation changes {name}",
            expected="evaluation leaves parameters unchanged",
            observed=f"{name} has different values after each of two forward passes",
        )
