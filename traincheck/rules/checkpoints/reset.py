"""Weights that are loaded or initialized again, and lose what they held."""

from __future__ import annotations

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StageEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import EvalWeights
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import RANDOM_INITS, Families

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
    _first: dict[str, str | None] = fresh(dict)
    _stepped: set[str | None] = fresh(set)  # optimizers, before the load
    _load: CheckpointEvent | None = None
    _is_used = False
    _moved: set[str] = fresh(set)  # parameters, since the last evaluation with first weights
    _seen: dict[str, list[tuple[Event, int]]] = fresh(dict)  # such evaluations by model

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter":
                if event.change == "content":
                    self._moved.add(event.name)
                elif event.change == "new" and event.summary is not None:
                    self._first.setdefault(event.name, event.summary.fingerprint)
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
        if load is not None and self._is_used and load.target not in self.reported:
            self.reported.add(load.target)
            said = f"loads exactly its {_MADE} and is evaluated or saved with them"
            return [self._violation(load, load.target, said, len(load.values))]
        for model, marks in self._seen.items():
            if len(marks) >= _EVALUATIONS and model not in self.reported:
                self.reported.add(model)
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


_INITS = RANDOM_INITS | {
    f"torch.nn.init.{name}_" for name in ("constant", "zeros", "ones", "eye", "dirac", "sparse")
}
_MATRIX = 2  # dims of a weight
_FEWEST = 2  # weights
_MOST = 100_000  # parameters that are initialized after a load


class InitializedAfterLoad(EventRule, code="TC613", severity="error"):
    """initialized-after-load: a model is initialized again after its weights were loaded.

    What it checks:
        torch.nn.init does not fill the weights of a model between load_state_dict() and the first
        step.

    Why it matters:
        The loaded weights are lost. Training starts from scratch with the learning rate of a
        fine-tuning. The load reported success, and the loss falls.

    Fires on:
        - A load after which four fifths of the loaded weights (at least two) are initialized and
          have other values when the first step ends.

    Stays quiet on:
        - A new head, or other small parts that are initialized after the load.
        - Weights that are loaded or copied once more.
        - An initialization before the load, or after a first step.
        - Parameters on a GPU.

    Fix:
        Initialize first, then load.

    Options:
        share: share of the loaded weights, in [0, 1], that counts as all of them.

    Source:
        https://github.com/open-mmlab/mmengine/pull/555
    """

    title = "{subject} is initialized after its weights were loaded"
    likely_cause = "An initialization runs after load_state_dict(): {observed}."
    fix = "Initialize first, then load."
    needs = Needs(
        calls=_INITS | {Families.OPTIMIZER_STEP},
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "step"}),
    )
    share: float = 0.8
    _loads: dict[str, CheckpointEvent] = fresh(dict)  # by target
    _filled: dict[int, CallEvent] = fresh(dict)  # last initialization by identity
    _looks: dict[str, StateEvent] = fresh(dict)  # first record of each loaded weight since then

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            if event.values and event.target is not None:
                self.triggered += 1
                self._loads[event.target] = event
                for name in event.values:
                    self._looks.pop(name, None)
        elif not self._loads:
            return []
        elif isinstance(event, CallEvent):
            if event.api not in _INITS:
                self.is_over = True  # the step ends soon, after the late records of states
                return []
            result = event.result if isinstance(event.result, dict) else {}
            identity = result.get("identity")
            if not self.is_over and isinstance(identity, int) and len(self._filled) < _MOST:
                self._filled[identity] = event
        elif isinstance(event, StateEvent):
            if event.role != "parameter" or event.summary is None or not event.summary.fingerprint:
                return []
            if any(event.name in load.values for load in self._loads.values()):
                self._looks.setdefault(event.name, event)
        elif isinstance(event, StepEvent) and self.is_over:
            found = [v for load in self._loads.values() for v in self._conclude(load)]
            self._loads.clear()
            self._filled.clear()
            self._looks.clear()
            self.is_over = False
            return found
        return []

    def _conclude(self, load: CheckpointEvent) -> list[Violation]:
        looks = [self._looks[name] for name in load.values if name in self._looks]
        weights = [look for look in looks if look.summary and len(look.summary.shape) >= _MATRIX]
        lost = [
            look
            for look in weights
            if (call := self._filled.get(look.identity)) is not None
            and call.time_ns > load.time_ns
            and look.summary is not None
            and look.summary.fingerprint != load.values[look.name]
        ]
        if len(lost) < max(_FEWEST, self.share * len(weights)):
            return []
        call = self._filled[lost[0].identity]
        return self.found(
            load,
            step=lost[0].step,
            stage=lost[0].stage,
            subject=Subject(module=load.target, variable=lost[0].name),
            symptom=Symptom.NOT_RESTORED,
            message=f"{call.api} fills {lost[0].name} after the load",
            expected="the loaded values at the first step",
            observed=f"{call.api} fills {len(lost)} of {len(weights)} loaded weights",
            evidence=(load, call, lost[0]),
        )
