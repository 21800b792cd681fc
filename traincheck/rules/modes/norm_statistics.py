"""Norms that are evaluated with initial or stale statistics."""

from __future__ import annotations

from collections import defaultdict

from traincheck.readings.modal_modules import AUXILIARY, AuxiliaryModels
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)
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
    _models: defaultdict[int, AuxiliaryModels] = fresh(lambda: defaultdict(AuxiliaryModels))

    def judge(self, event: Event) -> list[Violation]:
        call = observed(event, AuxiliaryInitialNorms)
        if call is None or not event.step:
            return []
        self.triggered += 1
        model = self._models[event.rank].look(call, event.step)
        if not model.has_moved or model.name in self.reported:
            return []
        self.reported.add(model.name)
        return self.found(
            event,
            stage="eval",
            subject=Subject(module=model.name),
            symptom=Symptom.STATE_UNCHANGED,
            message=f"{model.name} is evaluated; its weights have changed, but its batch norms "
            "have not",
            expected="running statistics that were updated or copied like the weights",
            observed="running_mean is 0 and running_var is 1, from no batch",
        )


class StaleNormStatistics(BuiltInRule, code="TC308"):
    """stale-norm-statistics: averaged weights, and batch norms of the last weights.

    What it checks:
        Before a stochastic weight average is evaluated, its batch norms see the training data.

    Why it matters:
        AveragedModel averages parameters only. Running means and variances are copied from the
        model at each update and do not fit the averaged weights. The average often performs far
        worse than each of its models, and is given up for that reason.

    Fires on:
        - The end of a run that evaluated a plain mean of two or more models: AveragedModel without
          an averaging function and without use_buffers. It has batch norms and was never called in
          training mode.

    Stays quiet on:
        - update_bn before the evaluation, or once after others.
        - use_buffers=True.
        - Moving averages (an averaging function), whose statistics are close to the latest.
        - Models without batch norm.
        - Means that are not evaluated, or evaluated through their inner module.
        - Steps that are sampled.

    Fix:
        Call torch.optim.swa_utils.update_bn(loader, averaged) before the evaluation.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#taking-care-of-batch-normalization
    """

    title = "{subject} is evaluated with the batch norms of the last weights, not of their mean"
    likely_cause = "update_bn was not called: running statistics are copied, not averaged."
    fix = "Call torch.optim.swa_utils.update_bn(loader, {subject}) before the evaluation."
    needs = AUXILIARY | Needs(kinds=frozenset({"step"}))
    _evaluated: dict[tuple[int, str], Event] = fresh(dict)
    _updated: set[tuple[int, str]] = fresh(set)
    _is_sampled = False

    def observe(self, event: Event) -> list[Violation]:
        """Report nothing yet: update_bn may still follow before the last evaluation."""
        if isinstance(event, StepEvent):
            self._is_sampled |= not event.recorded
        elif (call := observed(event, AuxiliaryTraining)) is not None:
            self._updated.add((event.rank, call.model))
        mean = observed(event, AuxiliaryInitialNorms, AuxiliaryEval)
        if mean is not None and mean.statistics == "copied":
            self.triggered += 1
            self._evaluated.setdefault((event.rank, mean.model), event)
        return []

    def finish(self) -> list[Violation]:
        """Report averages for which update_bn never ran."""
        if self._is_sampled:
            return []
        return [
            self.violation(
                event,
                stage="eval",
                subject=Subject(module=model),
                symptom=Symptom.STATE_UNCHANGED,
                message=f"{model} is a mean of weights, but its batch norms were never updated for "
                "it",
                expected="a pass over training data in training mode (update_bn) before the "
                "evaluation",
                observed="running statistics copied from the last averaged model",
            )
            for (rank, model), event in self._evaluated.items()
            if (rank, model) not in self._updated
        ]
