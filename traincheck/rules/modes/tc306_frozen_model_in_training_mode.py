"""A teacher or reference model, which is not trained, is used in training mode."""

from __future__ import annotations

from traincheck.facts.auxiliary_models import AUXILIARY
from traincheck.facts.forwards import Forward
from traincheck.facts.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import joined

_LOOKS = 8


class FrozenModelInTrainingMode(StepRule, code="TC306"):
    """frozen-model-in-training-mode: a teacher drops units or normalizes by the batch.

    What it checks:
        A model that serves the training of another, and that is itself not trained, runs in
        evaluation mode.

    Why it matters:
        What a teacher, a reference model or a feature extractor says becomes random with dropout,
        and with batch normalization it depends on what else is in the batch; running statistics
        drift away from those it was trained with.

    Fires on:
        Eight looks at steps in which an optimizer updates another model, while a model that no
        optimizer holds and whose weights stay the same is called without gradients, in training
        mode, with dropout or batch normalization at work. Calls of model.train() reach a teacher
        that is an attribute of the trained module.

    Stays quiet on:
        model.eval(); averages of the trained weights and targets that are copied from it (their
        weights change); several passes of one batch (Monte Carlo dropout); models without dropout
        and batch normalization; a part that is called within the trained model's own forward.

    Fix:
        Call eval() on it, after every train() of a module that holds it.

    Source:
        https://discuss.pytorch.org/t/model-eval-vs-with-torch-no-grad/19615
    """

    title = "{subject}, which is not being trained, is used in training mode"
    likely_cause = (
        "eval() is not called on it, or a train() of a module that holds it undid that: {observed}."
    )
    fix = "Call {subject}.eval(), after every train() of a module that holds it."
    needs = DISCOVERY | GRADIENTS | MODES | AUXILIARY

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

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
                model.looks < _LOOKS
                or model.has_moved
                or forward.path in self._told
                or forward.count not in (1, forward.fresh)
            ):
                continue
            active = forward.active
            if active:
                self._told.add(forward.path)
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
            message=f"{path} is not being trained, and is used without gradients, in training mode",
            expected=f"{path} in evaluation mode, as no optimizer holds any of it",
            observed=f"working as in training: {joined(active)}",
            evidence=(forward.call,),
        )
