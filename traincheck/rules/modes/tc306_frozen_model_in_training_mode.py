"""A teacher or reference model that is not trained is used in training mode."""

from __future__ import annotations

from traincheck.readings.auxiliary_models import AUXILIARY
from traincheck.readings.forwards import Forward
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import joined

_SCANS = 8  # scans before the model counts as unchanged


class FrozenModelInTrainingMode(StepRule, code="TC306"):
    """frozen-model-in-training-mode: a teacher drops units or normalizes by the batch.

    What it checks:
        A model that serves the training of another, and is not trained itself, runs in evaluation
        mode.

    Why it matters:
        With dropout, the output of a teacher, reference model or feature extractor is random. With
        batch normalization, it depends on the rest of the batch, and running statistics drift away
        from those it was trained with.

    Fires on:
        - Eight scans at steps in which an optimizer updates another model. Meanwhile a model that
          no optimizer holds, and whose weights do not change, is called without gradients in
          training mode, with dropout or batch normalization active. Example: model.train() reaches
          a teacher that is an attribute of the trained module.

    Stays quiet on:
        - model.eval().
        - Averages of the trained weights, and target networks copied from them (their weights
          change).
        - Several passes of one batch (Monte Carlo dropout).
        - Models without dropout and batch normalization.
        - A part that is called within the trained model's forward.

    Fix:
        Call eval() on it after every train() of a module that holds it.

    Source:
        https://discuss.pytorch.org/t/model-eval-vs-with-torch-no-grad/19615
    """

    title = "{subject}, which is not trained, is used in training mode"
    likely_cause = (
        "eval() is not called on it, or train() of a module that holds it switched it back: "
        "{observed}."
    )
    fix = "Call {subject}.eval() after every train() of a module that holds it."
    needs = DISCOVERY | GRADIENTS | MODES | AUXILIARY

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or not facts.updates():
            return []
        found = []
        for forward in facts.forwards:
            model = self.ledger.auxiliary.by_name.get(forward.path)
            if forward.call.grad_enabled or not forward.is_training or model is None:
                continue
            self.triggered += 1
            if (
                model.looks < _SCANS
                or model.has_moved
                or forward.path in self._reported
                or forward.count not in (1, forward.fresh)
            ):
                continue
            active = forward.active
            if active:
                self._reported.add(forward.path)
                found.append(self._violation(forward, active, model.first, facts))
        return found

    def _violation(
        self, forward: Forward, active: list[str], first: int | None, facts: StepFacts
    ) -> Violation:
        path = forward.path
        return proof(
            (self.code, Symptom.TRAINING_MODE),
            facts,
            step=first,
            subject=Subject(module=path),
            message=f"{path} is not trained and is used without gradients, but in training mode",
            expected=f"{path} in evaluation mode, as no optimizer holds any of it",
            observed=f"layers that behave as in training: {joined(active)}",
            evidence=(forward.call,),
        )
