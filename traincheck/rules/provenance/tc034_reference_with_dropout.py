"""The reference of a preference loss is computed with dropout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, Forward, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LabelPositions
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import tensors_in
from traincheck.schema.words import joined

_STEPS = 2


class ReferenceWithDropout(StepRule, code="TC034"):
    """reference-with-dropout: log-probabilities are compared with those of a random reference.

    What it checks:
        Where a loss compares log-probabilities of a model with log-probabilities that the same
        model computed without gradients for the same batch, dropout is off in the latter.

    Why it matters:
        Both passes drop other units, so their difference is not zero even for equal weights. In DPO
        and PPO, this noise enters the implicit rewards and the ratio of policies.

    Fires on:
        Two steps in which a model is called as often without gradients as with them, on inputs of
        the same shape, in training mode and with active dropout; and the loss subtracts constants
        from log-probabilities of labels. Example: the reference of DPO is the model with disabled
        adapters, in training mode.

    Stays quiet on:
        - Passes without gradients in evaluation mode, or without dropout.
        - Rollouts and generation, which call the model more often and on other inputs.
        - Pseudo-labels, consistency losses and passes that give the model its next input: nothing
          is subtracted from log-probabilities.
        - Reference models that are not trained (TC306).

    Fix:
        Call model.eval() before the pass without gradients and model.train() after it, or set the
        probability of dropout to 0.

    Source:
        https://github.com/hiyouga/LlamaFactory/pull/10779, https://github.com/huggingface/trl/issues/2042
    """

    title = "Dropout is on while {subject} computes reference log-probabilities"
    likely_cause = "The pass without gradients runs in training mode: {observed}."
    fix = (
        "Call {subject}.eval() before the pass under torch.no_grad() and {subject}.train() after "
        "it, or set the dropout probabilities to 0."
    )
    needs = DISCOVERY | GRADIENTS | MODES | needs_of(LabelPositions)
    observes = Needs(kinds=frozenset({"mark", "step"}), marks=frozenset({LabelPositions.text}))
    _is_compared = False
    _steps: Counter[str] = fresh(Counter)

    def observe(self, event: Event) -> Sequence[Violation]:
        found = observed(event, LabelPositions)
        if found is not None:
            self._is_compared |= found.compared
            return ()
        return super().observe(event)

    def judge(self, facts: StepFacts) -> list[Violation]:
        is_compared, self._is_compared = self._is_compared, False
        if not is_compared or not facts.is_complete:
            return []
        self.triggered += 1
        trained = {f.path: f for f in facts.forwards if f.call.grad_enabled}
        found = []
        for forward in facts.forwards:
            beside = trained.get(forward.path)
            # Whether a pass without gradients is that of a reference, with dropout.
            if (
                forward.call.grad_enabled
                or beside is None
                or not (
                    forward.is_training
                    and forward.count == beside.count
                    and bool(_active(forward))
                    and _shapes(forward) == _shapes(beside)
                )
            ):
                continue
            self._steps[forward.path] += 1
            if self._steps[forward.path] == _STEPS:
                path, active = forward.path, sorted(_active(forward))
                found += self.proven(
                    facts,
                    subject=Subject(module=path),
                    symptom=Symptom.TRAINING_MODE,
                    message=f"dropout is on while {path} computes log-probabilities without "
                    "gradients",
                    expected=f"{path} in evaluation mode in the pass without gradients, or no "
                    "dropout",
                    observed=f"{path} is in training mode, dropout is active in {joined(active)}",
                    evidence=(forward.call,),
                )
        return found


def _active(forward: Forward) -> list[str]:
    return [path for path, call in forward.dropping.items() if call.training is not False]


def _shapes(forward: Forward) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors_in(forward.call.args).items()}
