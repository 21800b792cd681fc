"""An average of weights is evaluated repeatedly and never updated."""

from __future__ import annotations

import re
from collections import defaultdict

from traincheck.readings.auxiliary_models import AUXILIARY, AuxiliaryModels, auxiliary_call
from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import AVERAGE_CLASS

_ROUNDS = 3
_STEPS = 50  # between the first and the last of them


class AveragedModelNeverUpdated(EventRule, code="TC614", aliases=("average-never-updated",)):
    """averaged-model-never-updated: an average of weights is evaluated but keeps initial weights.

    What it checks:
        A model whose class averages weights changes between its evaluations.

    Why it matters:
        Without update_parameters() (update() in other libraries), the average is a copy of the
        initial weights. It is evaluated and saved as the best model, but was never trained.

    Fires on:
        - The third evaluation, fifty training steps or more after the first, with the same weights
          in all. The class of the model is named e.g. AveragedModel, EMA, ModelEma or SWA.

    Stays quiet on:
        - Averages that change at all.
        - Averages that are evaluated in training only, or before it.
        - Models that an optimizer holds.
        - Copies of other classes, whose purpose is unknown.

    Fix:
        Call update_parameters(model) of the average after optimizer.step().

    Source:
        https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
    """

    title = "{subject} is evaluated as an average but never updated"
    likely_cause = (
        "update_parameters() of the average (update() in other libraries) is not called: "
        "{observed}."
    )
    fix = "Call update_parameters(model) of the average after optimizer.step()."
    needs = AUXILIARY

    def __init__(self) -> None:
        super().__init__()
        self._models: defaultdict[int, AuxiliaryModels] = defaultdict(AuxiliaryModels)
        self._reported: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        call = auxiliary_call(event)
        if call is None or not event.step:
            return []
        root = re.split("[.#]", call.model)[0]  # named after its class
        if not (AVERAGE_CLASS.search(call.model_class) or AVERAGE_CLASS.search(root)):
            return []
        self.triggered += 1
        model = self._models[event.rank].look(call, event.step)
        is_long = model.looks >= _ROUNDS and event.step - (model.first or 0) >= _STEPS
        if not is_long or model.has_moved or model.name in self._reported:
            return []
        self._reported.add(model.name)
        return [self._violation(event, model.name, model.looks)]

    def _violation(self, event: Event, model: str, rounds: int) -> Violation:
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="eval",
            subject=Subject(module=model),
            symptom=Symptom.STATE_UNCHANGED,
            message=f"{model} averages weights, but {rounds} evaluations used the same weights",
            expected=f"{model} changes between its evaluations, like the trained model",
            observed=f"the same weights in {rounds} evaluations",
            evidence=(event,),
        )
