"""TC608: a model is set back to the weights that it was made with. Goes by fingerprints."""

from __future__ import annotations

from traincheck.rules._single import SingleEvents
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    Families,
    OptimizerEvent,
    StageEvent,
    StateEvent,
)
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation


class TrainingUndone:
    """TC608 training-undone: a trained model is evaluated or saved with its first weights.

    What it checks:
        A state that a model loads after training has begun, and with which it is evaluated or
        saved, is not the one that the model was made with.

    Why it matters:
        An average of weights (EMA) that is never updated is still the first weights. Copying it in
        for evaluation and checkpoints reports and saves an untrained model, or undoes the epoch.

    Fires on:
        A load of exactly the first weights of the model after optimizer steps, an evaluation or
        a save, and then more steps of the same optimizer.

    Stays quiet on:
        Folds and trials, which make a new optimizer; searches for a learning rate, which restore
        the optimizer too; averages that moved; loads without evaluation; parameters on a GPU.

    Fix:
        Update the average after every optimizer step.

    Source:
        https://github.com/MultimediaTechLab/YOLO/issues/97
    """

    info = CheckInfo(
        check_id="TC608",
        kind="rule",
        code="TC608",
        severity="warning",
        title="{subject} is set back to the weights it was made with",
        likely_cause=(
            "What load_state_dict(){where} copies in was never updated, as an average of weights "
            "should be after each step."
        ),
        fix="Update the average of weights after every optimizer step.",
    )
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "optimizer", "stage", "step"}),
    )

    def monitor(self) -> FirstWeights:
        return FirstWeights()


class FirstWeights(SingleEvents):
    """Remembers how the parameters of each model began."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, str | None] = {}
        self._stepped: set[str | None] = set()  # optimizers, before the load
        self._load: CheckpointEvent | None = None
        self._is_used = False
        self._told: set[str | None] = set()

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.change == "new" and event.summary is not None:
                self._first.setdefault(event.name, event.summary.fingerprint)
        elif isinstance(event, CheckpointEvent):
            self._checkpoint(event)
        elif isinstance(event, OptimizerEvent):
            if event.change == "created":
                self._load = None
        elif isinstance(event, StageEvent):
            self._is_used |= self._load is not None and event.stage == "eval"
        elif isinstance(event, CallEvent):
            return self._step(event)
        return []

    def _checkpoint(self, event: CheckpointEvent) -> None:
        if event.op == "save":
            self._is_used |= self._load is not None
        elif event.op != "load_state_dict":
            return
        elif not event.values:
            if "optim" in (event.target or ""):
                self._load = None
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
        if load is None or not self._is_used or not is_known or load.target in self._told:
            return []
        self._told.add(load.target)
        return [
            Violation(
                check_id="TC608",
                step=load.step,
                rank=load.rank,
                stage=load.stage,
                subject=Subject(module=load.target),
                symptom=Symptom.SILENT_WRITE,
                message=(
                    f"after training, {load.target} loads exactly the weights that it was made "
                    "with, is evaluated or saved with them, and training goes on"
                ),
                expected="weights that training has changed",
                observed=f"the {len(load.values)} parameters as they were before the first step",
                evidence=(load,),
            )
        ]
