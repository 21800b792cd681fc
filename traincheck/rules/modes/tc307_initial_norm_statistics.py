"""Batch norms of a copied or averaged model that is evaluated have never seen a batch."""

from __future__ import annotations

from collections import defaultdict

from traincheck.readings.auxiliary_models import AUXILIARY, AuxiliaryModels
from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.models import AuxiliaryInitialNorms
from traincheck.schema.observations.reading import observed


class InitialNormStatistics(EventRule, code="TC307"):
    """initial-norm-statistics: an average of weights is evaluated with a blank batch norm.

    What it checks:
        When a model that no optimizer holds is evaluated, the running mean and variance of its
        batch norms have been updated, or copied, like its weights.

    Why it matters:
        Buffers are not parameters: an average over parameters() leaves them at their initial
        values, 0 and 1. The evaluation then scales activations by meaningless statistics.

    Fires on:
        - A copy of a model (an EMA, a target network) whose weights have changed between two
          evaluations, while the statistics of its batch norms are still 0 and 1, from no batch.

    Stays quiet on:
        - Averages whose buffers are copied or averaged too, e.g. by AveragedModel.
        - update_bn before the evaluation.
        - Models that an optimizer holds.
        - Random models whose weights never change.
        - Evaluation before the first step.
        - Models in training mode.

    Fix:
        Copy the buffers together with the parameters, or call torch.optim.swa_utils.update_bn.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#taking-care-of-batch-normalization,
        https://github.com/DLR-RM/stable-baselines3/issues/996
    """

    title = "{subject} is evaluated with batch norms that never saw a batch"
    likely_cause = (
        "Its weights are a copy or an average of another model's. The statistics of its batch "
        "norms are buffers and were not copied."
    )
    fix = (
        "Copy buffers together with parameters, or call torch.optim.swa_utils.update_bn before "
        "the evaluation."
    )
    needs = AUXILIARY

    def __init__(self) -> None:
        super().__init__()
        self._models: defaultdict[int, AuxiliaryModels] = defaultdict(AuxiliaryModels)
        self._reported: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        call = observed(event, AuxiliaryInitialNorms)
        if call is None or not event.step:
            return []
        self.triggered += 1
        model = self._models[event.rank].look(call, event.step)
        if not model.has_moved or model.name in self._reported:
            return []
        self._reported.add(model.name)
        return [self._violation(event, model.name)]

    def _violation(self, event: Event, model: str) -> Violation:
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="eval",
            subject=Subject(module=model),
            symptom=Symptom.STATE_UNCHANGED,
            message=(
                f"{model} is evaluated; its weights have changed, but its batch norms have not"
            ),
            expected="running statistics that were updated or copied like the weights",
            observed="running_mean is 0 and running_var is 1, from no batch",
            evidence=(event,),
        )
