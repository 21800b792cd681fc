"""An optimizer is rebuilt for each pass over the data."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.readings.loader_epochs import Passes
from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import RANDOM_INITS, Families

_IN_A_ROW = 3
_FEW_STEPS = 2
_MOST_ROWS = 64  # of optimizers that differ
_Likeness = tuple[str, str | None, frozenset[int], str]  # class, line, parameters, options


class OptimizerRecreatedEachEpoch(EventRule, code="TC223", aliases=("optimizer-made-anew",)):
    """optimizer-recreated-each-epoch: an optimizer is built inside the loop over epochs.

    What it checks:
        An optimizer that keeps momentum or averages is not replaced by another one over the same
        parameters after each whole pass over a loader.

    Why it matters:
        Momentum and averages of squares start at zero in each epoch, so the first steps go far in
        the direction of single batches. The loss falls more slowly or ends higher.

    Fires on:
        - Three optimizers of one class with the same options, built by the same line over the same
          parameters. Each of the first two lives for one pass over the same loader.

    Stays quiet on:
        - SGD without momentum, and LBFGS.
        - Phases of training with other options, parameters or loaders, or of several epochs each.
        - Other models in each fold.
        - Models that are initialized again, or optimizers into which a state is loaded (rounds of
          federated averaging, a restored optimizer).

    Fix:
        Build the optimizer once, before the loop. To change its rate, use a scheduler or write to
        optimizer.param_groups.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html (what an optimizer keeps)
    """

    title = "The optimizer is rebuilt in each epoch and loses its state"
    likely_cause = "The optimizer is built{where} inside the loop over epochs: {observed}."
    fix = "Build the optimizer once, before the loop over epochs."
    needs = Needs(
        calls=RANDOM_INITS | {Families.OPTIMIZER_STEP},
        kinds=frozenset({"optimizer", "batch", "checkpoint", "step"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[_Likeness, list[_Generation]] = {}
        self._last: dict[str, list[_Generation]] = {}  # rows by the id of their last optimizer
        self._passes = Passes()

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            self._passes.enter(event)
        elif isinstance(event, OptimizerEvent):
            self._made(event)
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            return self._step(event)
        elif _may_reset(event):
            self._rows.clear()
            self._last.clear()
        return []

    def _made(self, event: OptimizerEvent) -> None:
        if event.change != "created" or not _keeps_state(event):
            return
        likeness = (
            event.cls,
            event.where,
            frozenset(i for group in event.groups for i in group.ids),
            repr([dict(group.hyper) for group in event.groups]),
        )
        batches = dict(self._passes.batches)
        now = _Generation(event, {one: self._passes.whole(one) for one in batches}, batches)
        row = self._rows.get(likeness)
        now.loader = _fed_once(row[-1], now) if row else None
        if not row or now.loader is None or row[-1].loader not in (None, now.loader):
            row = []
        if len(self._rows) > _MOST_ROWS:
            self._rows.clear()
        self._rows[likeness] = [*row[-_IN_A_ROW:], now]
        self._last = {one[-1].made.id: one for one in self._rows.values()}

    def _step(self, call: CallEvent) -> list[Violation]:
        row = self._last.get(str(call.owner))
        if row is None:
            return []
        last = row[-1]
        last.steps += 1
        if last.steps > 1:
            return []
        last.first_step = call.step
        self.triggered += 1
        return [self._violation(row, call)] if len(row) == _IN_A_ROW else []

    def _violation(self, row: list[_Generation], call: CallEvent) -> Violation:
        first, second, third = (generation.made for generation in row)
        name = first.cls.rpartition(".")[2]
        return Violation(
            check_id=self.code,
            step=row[1].first_step,
            rank=call.rank,
            stage="train",
            subject=Subject(api=f"{first.cls}.__init__"),
            symptom=Symptom.MADE_ANEW,
            message=f"{second.id} ({name}) is rebuilt over the parameters of {first.id}",
            expected="one optimizer for all epochs",
            observed=(
                f"{first.id}, {second.id} and {third.id} ({name}), over the same parameters, are "
                "built one after the other, for one epoch each"
            ),
            evidence=(third, call),
        )


@dataclass(slots=True)
class _Generation:
    """An optimizer, its number of steps, and the batches of each loader before it was built.

    Attributes:
        loader: the loader that fed the previous optimizer, if that lived for one pass.
    """

    made: OptimizerEvent
    passes: dict[str, int]
    batches: dict[str, int]
    loader: str | None = None
    steps: int = 0
    first_step: int | None = None


def _may_reset(event: Event) -> bool:
    """Whether losing state may be intended, or steps were not recorded."""
    if isinstance(event, CheckpointEvent):
        return event.op == "load_state_dict" and brings_back(event)
    if isinstance(event, CallEvent):
        return event.api in RANDOM_INITS
    return isinstance(event, StepEvent) and not event.recorded


def _keeps_state(event: OptimizerEvent) -> bool:
    name = event.cls.rpartition(".")[2]
    if name == "SGD":
        return any(group.hyper.get("momentum") for group in event.groups)
    return name != "LBFGS"


def _fed_once(before: _Generation, now: _Generation) -> str | None:
    """The loader that fed training between the two optimizers, if it made one pass."""
    came = {one: count - before.batches.get(one, 0) for one, count in now.batches.items()}
    feeding = max(came, key=came.__getitem__, default="")
    if not _FEW_STEPS <= before.steps <= came.get(feeding, 0):
        return None
    return feeding if now.passes[feeding] - before.passes.get(feeding, 0) == 1 else None
