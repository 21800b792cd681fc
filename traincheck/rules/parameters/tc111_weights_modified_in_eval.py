"""A model that is evaluated writes to its own parameters."""

from __future__ import annotations

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.eval_weights import EvalWeights, EvalWrites
from traincheck.schema.observations.reading import observed


class WeightsModifiedInEval(
    EventRule, code="TC111", severity="error", aliases=("written-in-evaluation",)
):
    """weights-modified-in-eval: each forward pass in evaluation changes trained parameters.

    What it checks:
        A forward pass in evaluation mode and without grad leaves the parameters that an optimizer
        updates as they are.

    Why it matters:
        What is evaluated depends on how many batches came before, and training goes on with weights
        that no step of an optimizer made. Without grad, autograd does not refuse such a write.

    Fires on:
        Two forward passes of one evaluation that both change the same parameter: an operation in
        place on a parameter or a view of it (+=, mul_, index_fill_), or on its .data.

    Stays quiet on:
        A parameter that the first pass initializes or normalizes; weights that are swapped between
        passes; test-time training, whose forward steps an optimizer; forward passes in training
        mode; buffers; parameters on a GPU.

    Fix:
        Use the operation that returns a new tensor, or clone the parameter before.

    Source:
        https://github.com/intel/ipex-llm/issues/2838,
        https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    title = "Evaluation writes to parameters: {variables}"
    likely_cause = (
        "An operation in the forward pass works in place on {variables} or on a view of it, "
        "which autograd allows without grad."
    )
    fix = "Use the operation that is not in place, or clone the parameter first."
    needs = needs_of(EvalWeights, EvalWrites)

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        self.triggered += observed(event, EvalWeights, EvalWrites) is not None
        wrote = observed(event, EvalWrites)
        if wrote is None:
            return []
        new = [name for name in wrote.names if name not in self._told]
        self._told.update(new)
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
            expected="evaluation leaves parameters as they are",
            observed=f"{name} is another one after each of two forward passes",
        )
