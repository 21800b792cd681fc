"""A model is reset to its initial weights. Compares fingerprints."""

from __future__ import annotations

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StageEvent,
    StateEvent,
)
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import EvalWeights
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_EVALUATIONS = 2
_MADE = "initial weights"


class WeightsResetDuringTraining(EventRule, code="TC608", aliases=("training-undone",)):
    """weights-reset-during-training: a trained model is evaluated or saved with initial weights.

    What it checks:
        After training has started, a model is not evaluated or saved with its initial weights,
        whether loaded or copied.

    Why it matters:
        An average of weights (EMA) that is never updated still holds the initial weights. Copying
        it in for evaluation and checkpoints reports and saves an untrained model, or undoes the
        epoch.

    Fires on:
        - A load of exactly the initial weights after optimizer steps, then an evaluation or a save,
          and then more steps of the same optimizer.
        - Two evaluations with exactly the initial weights, which had changed before each, without a
          recorded load (copy_, .data).

    Stays quiet on:
        - Folds and trials, which create a new optimizer.
        - Learning-rate finders, which restore the optimizer too.
        - Averages that changed.
        - Loads without evaluation.
        - Weights that never change.
        - Parameters on a GPU.

    Fix:
        Update the average after every optimizer step.

    Source:
        https://github.com/MultimediaTechLab/YOLO/issues/97
    """

    title = "{subject} is reset to its initial weights"
    likely_cause = (
        "The weights copied in{where} were never updated, e.g. an average that must be updated "
        "after each step."
    )
    fix = "Update the average of weights after every optimizer step."
    needs = needs_of(EvalWeights) | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new", "parameter@step"}),
        kinds=frozenset({"checkpoint", "optimizer", "stage", "step"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, str | None] = {}
        self._stepped: set[str | None] = set()  # optimizers, before the load
        self._load: CheckpointEvent | None = None
        self._is_used = False
        self._reported: set[str | None] = set()
        self._moved: set[str] = set()  # parameters, since the last evaluation with first weights
        self._seen: dict[str, list[tuple[Event, int]]] = {}  # such evaluations by model

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter":
                self._parameter(event)
        elif isinstance(event, CheckpointEvent):
            self._checkpoint(event)
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self._load = None
                self._seen.clear()
        elif (found := observed(event, EvalWeights)) is not None:
            if self._stepped:
                self._evaluated(event, found)
        elif isinstance(event, StageEvent):
            self._is_used |= self._load is not None and event.stage == "eval"
        elif isinstance(event, CallEvent):
            return self._step(event)
        return []

    def _parameter(self, event: StateEvent) -> None:
        if event.change == "content":
            self._moved.add(event.name)
        elif event.change == "new" and event.summary is not None:
            self._first.setdefault(event.name, event.summary.fingerprint)

    def _evaluated(self, event: Event, found: EvalWeights) -> None:
        """Add an evaluation of a model. A load before it has been recorded by now."""
        values, model = found.values, found.model
        if not values or self._load is not None:
            return
        self.triggered += 1
        is_first = all(self._first.get(name, "") == value for name, value in values.items())
        if is_first and self._moved & values.keys():
            self._seen.setdefault(model, []).append((event, len(values)))
            self._moved -= values.keys()

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op == "save":
            self._is_used |= self._load is not None
        elif event.op != "load_state_dict":
            return
        elif not event.values:
            if "optim" in (event.target or "") and brings_back(event):
                self._load = None
                self._seen.clear()
        elif self._stepped and event.changed:
            self.triggered += 1
            if all(self._first.get(name) == value for name, value in event.values.items()):
                self._load, self._is_used = event, False
            elif not self._is_used:
                self._load = None

    def _step(self, event: CallEvent) -> list[Violation]:
        load, self._load = self._load, None
        is_known = event.owner in self._stepped
        self._stepped.add(event.owner)
        if not is_known:
            return []
        if load is not None and self._is_used and load.target not in self._reported:
            self._reported.add(load.target)
            said = f"loads exactly its {_MADE} and is evaluated or saved with them"
            return [self._violation(load, load.target, said, len(load.values))]
        for model, marks in self._seen.items():
            if len(marks) >= _EVALUATIONS and model not in self._reported:
                self._reported.add(model)
                first, count = marks[0]
                said = f"is evaluated repeatedly with exactly its {_MADE}"
                return [self._violation(first, model, said, count)]
        return []

    def _violation(self, event: Event, model: str | None, said: str, count: int) -> Violation:
        return self.violation(
            event,
            subject=Subject(module=model),
            symptom=Symptom.SILENT_WRITE,
            message=f"after training, {model} {said}, and training continues",
            expected="weights that training has changed",
            observed=f"the {count} parameters as before the first step",
            evidence=(event,) if isinstance(event, CheckpointEvent) else (),
        )
