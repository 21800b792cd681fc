"""Averages of weights that are not restored, or never updated."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from traincheck.readings.modal_modules import AUXILIARY, AuxiliaryModels, auxiliary_call
from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import LoadedAverage
from traincheck.schema.observations.reading import observed
from traincheck.schema.words import AVERAGE_CLASS

_UPDATES = 3  # one that copies, and two that do not
_MOST = 16  # loads stored at a time


class AveragedModelNotRestored(EventRule, code="TC611", aliases=("average-forgotten",)):
    """averaged-model-not-restored: the first update after a resume overwrites the average.

    What it checks:
        A model that no optimizer holds is loaded together with the trained model and its optimizer.
        The first step does not set it to exactly the trained model, with averaging from then on.

    Why it matters:
        The number of updates was not saved with the average. Counting restarts at 0, so the warm-up
        of its decay (or a running mean) replaces the whole average by the current weights. The
        evaluated model gets worse with every resume, without a message.

    Fires on:
        - A load of weights that differ from the trained model. The first update makes all
          parameters equal to it, and updates in the next two steps do not. The first of these steps
          is reported.

    Stays quiet on:
        - Averages that continue averaging.
        - Target networks, which are copied again.
        - Averages that are equal to the trained model when loaded, or unchanged by the load.
        - Models with a counter among their buffers.
        - Averages that are not updated in each step.
        - Trained models that are written by hand after their step, e.g. to copy the average in for
          evaluation.
        - Starts without a loaded optimizer.
        - Models on a GPU.
        - Sampled steps.

    Fix:
        Save the number of updates with the average: register_buffer("count", torch.zeros(())).

    Source:
        https://github.com/lightly-ai/lightly-train/pull/892
    """

    title = "{subject} loses its average when training is resumed"
    likely_cause = (
        "The number of its updates restarts at 0 after the load, e.g. as it is not saved."
    )
    fix = "Save the number of updates with the average, as one of its buffers."
    needs = needs_of(LoadedAverage) | Needs(kinds=frozenset({"checkpoint", "step"}))
    _loaded: dict[str, _Loaded] = fresh(dict)
    _optimizer: CheckpointEvent | None = None

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            self._checkpoint(event)
        elif isinstance(event, StepEvent):
            if not event.recorded:
                self._loaded.clear()
        elif (found := observed(event, LoadedAverage)) is not None:
            model = found.model
            loaded = self._loaded.get(model)
            if loaded is None or event.step is None or not loaded.load.changed:
                return []
            if not loaded.steps:
                if not self._is_resumed(loaded.load, event.step, found.of):
                    return self._forget(model)
                self.triggered += 1
                if found.equal is not True:
                    return self._forget(model)
                loaded.copied = event, found
            elif found.equal is not False or event.step != loaded.steps[-1] + 1:
                return self._forget(model)
            loaded.steps.append(event.step)
            if len(loaded.steps) < _UPDATES or loaded.copied is None:
                return []
            self._forget(model)
            return [self._violation(loaded.load, *loaded.copied)]
        return []

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op != "load_state_dict" or event.target is None:
            return
        if event.values:
            self._loaded.pop(event.target, None)
            if len(self._loaded) >= _MOST:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[event.target] = _Loaded(event)
        elif event.owner is not None and brings_back(event):
            self._optimizer = event

    def _is_resumed(self, load: CheckpointEvent, step: int, trained_model: str) -> bool:
        """Whether the trained model, with other values, and its optimizer were loaded too."""
        optimizer, of = self._optimizer, f"{trained_model}."
        if optimizer is None or None in (load.step, optimizer.step):
            return False
        if abs(optimizer.step - load.step) > 1 or step - load.step > 1:  # type: ignore[operator]
            return False
        trained = [
            entry.load
            for entry in self._loaded.values()
            if entry.load is not load and any(name.startswith(of) for name in entry.load.values)
        ]
        mine = set(load.values.values())
        return bool(trained) and not any(mine <= set(e.values.values()) for e in trained)

    def _forget(self, model: str) -> list[Violation]:
        self._loaded.pop(model, None)
        return []

    def _violation(self, load: CheckpointEvent, copied: Event, found: LoadedAverage) -> Violation:
        of = found.of
        return self.violation(
            copied,
            subject=Subject(module=load.target),
            symptom=Symptom.NOT_RESTORED,
            message=f"{load.target} is loaded with an average of weights; its first update makes "
            f"it exactly {of}, and the next ones average as if it had never been updated: its "
            "count of updates is not restored",
            expected="an update that preserves most of the loaded average",
            observed=f"all {found.parameters} parameters are those of {of}",
            evidence=(load, copied),
        )


@dataclass(slots=True)
class _Loaded:
    """A model since its load. steps: those that changed it. copied: the mark of the copy."""

    load: CheckpointEvent
    steps: list[int] = field(default_factory=list)
    copied: tuple[Event, LoadedAverage] | None = None


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
    _models: defaultdict[int, AuxiliaryModels] = fresh(lambda: defaultdict(AuxiliaryModels))

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
        if not is_long or model.has_moved or model.name in self.reported:
            return []
        self.reported.add(model.name)
        return self.found(
            event,
            stage="eval",
            subject=Subject(module=model.name),
            symptom=Symptom.STATE_UNCHANGED,
            message=f"{model.name} averages weights, but {model.looks} evaluations used the same "
            "weights",
            expected=f"{model.name} changes between its evaluations, like the trained model",
            observed=f"the same weights in {model.looks} evaluations",
        )
