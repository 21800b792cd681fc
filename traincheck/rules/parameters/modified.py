"""Weights that change in evaluation mode, or between two steps."""

from __future__ import annotations

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.observations.models import EvalWeights, EvalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.words import is_unowned


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

    def judge(self, event: Event) -> list[Violation]:
        self.triggered += observed(event, EvalWeights, EvalWrites) is not None
        wrote = observed(event, EvalWrites)
        if wrote is None:
            return []
        new = [name for name in wrote.names if name not in self.reported]
        self.reported.update(new)
        return [
            self.violation(
                event,
                stage="eval",
                subject=Subject(module=wrote.model, variable=name),
                symptom=Symptom.SILENT_WRITE,
                message=f"each forward pass of {wrote.model} in evaluation changes {name}",
                expected="evaluation leaves parameters unchanged",
                observed=f"{name} has different values after each of two forward passes",
                evidence=(),
            )
            for name in new
        ]


_IN_A_ROW = 3


class WeightsModifiedBetweenSteps(
    EventRule, code="TC114", severity="info", aliases=("written-between-steps",)
):
    """weights-modified-between-steps: parameters change between two steps of their optimizer.

    What it checks:
        Parameters that an optimizer updates are changed only by its step or by loading a
        checkpoint.

    Why it matters:
        The write overwrites the progress of the step, and the momentum of the optimizer belongs to
        weights that no longer exist. The loss may fall all the same.

    Fires on:
        - Weights that are copied, scaled, clamped or averaged in the loop, at three scans in a row.
          Scans run at the first steps, and then before every 11th.

    Stays quiet on:
        - Weights that were loaded.
        - Parameters that two optimizers hold.
        - The first step.
        - Models on a device.
        - Tensors that no module owns, e.g. an image that is kept within its range.
        - Values that are restored before the next step, e.g. averages that are swapped in for an
          evaluation.

    Fix:
        Let the optimizer do it: use weight_decay, a parametrization, or averages in a separate
        model. If the write is intended, e.g. to clip the weights of a critic, ignore TC114.

    Source:
        https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    title = "Something other than the optimizer writes to {variables}"
    likely_cause = "The loop, or a forward pass, changes weights in place between two steps."
    fix = (
        "Remove the write to {variables} outside of optimizer.step() (copy_(), .data, an in-place "
        "operation), or ignore TC114 if the write is intended, e.g. to clip weights."
    )
    needs = needs_of(ExternalWrites) | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"checkpoint"})
    )
    _times: dict[str, dict[str, int]] = fresh(dict)  # optimizer -> its parameters
    _first: dict[str, int | None] = fresh(dict)
    _is_loaded = False  # since the last scan

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            self._is_loaded |= brings_back(event)
        look = observed(event, ExternalWrites)
        if look is None:
            return []
        is_loaded, self._is_loaded = self._is_loaded, False
        if is_loaded:
            return []
        self.triggered += 1
        written = [name for name in look.names if not is_unowned(name)]
        owner = look.owner
        before = self._times.get(owner, {})
        self._times[owner] = {name: before.get(name, 0) + 1 for name in written}
        found = []
        for name, times in self._times[owner].items():
            if times == 1:
                self._first[name] = event.step
            elif times >= _IN_A_ROW and name not in self.reported:
                self.reported.add(name)
                found += self.found(
                    event,
                    step=self._first[name],
                    stage="train",
                    subject=Subject(variable=name),
                    symptom=Symptom.ADVICE,
                    message=f"something other than {owner} writes to {name} between its steps",
                    expected=f"no write to {name} between two steps of {owner}",
                    observed=f"at {_IN_A_ROW} scans in a row the values differ from those that "
                    f"{owner} left",
                )
        return found
