"""Optimizers that are made with swapped betas, or made again each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincheck.readings.loader_epochs import Passes
from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule, fresh
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

_LONG = 0.95  # usually only the second moment has such a long memory


class BetasSwapped(EventRule, code="TC218"):
    """betas-swapped: the average of gradients decays more slowly than that of their squares.

    What it checks:
        The first beta of an optimizer (for the mean of gradients) is not greater than the second
        one, if it is above 0.95.

    Why it matters:
        With betas=(0.999, 0.9) each update follows gradients of a thousand steps ago and is scaled
        by the last ten. Training still progresses, slowly, and overshoots.

    Fires on:
        - An optimizer whose betas are the usual two in the wrong order: (0.999, 0.9).

    Stays quiet on:
        - Equal betas.
        - A first beta that is only slightly greater, or small.

    Fix:
        Pass betas=(0.9, 0.999): first the beta for gradients, then the beta for their squares.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    title = "The betas of {subject} are in the wrong order"
    likely_cause = "The two betas{where} may have been swapped: {observed}."
    fix = "Pass the beta for gradients first, then the beta for their squares: betas=(0.9, 0.999)."
    needs = Needs(kinds=frozenset({"optimizer"}))

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, OptimizerEvent) or event.change != "created":
            return []
        found = []
        for betas in dict.fromkeys(_betas(event)):
            self.triggered += 1
            if betas[0] > max(_LONG, betas[1]) and betas[1] < _LONG:
                name = event.cls.rpartition(".")[2]
                found += self.found(
                    event,
                    subject=Subject(api=event.cls),
                    symptom=Symptom.WRONG_VALUE,
                    message=f"{event.id} ({name}) was built with betas={betas}",
                    expected="the first beta, for gradients, below the second, for their squares",
                    observed=f"betas={betas}",
                )
        return found


def _betas(event: OptimizerEvent) -> Iterator[tuple[float, float]]:
    for group in event.groups:
        betas = group.hyper.get("betas")
        if isinstance(betas, Sequence) and not isinstance(betas, str) and len(betas) == 2:  # noqa: PLR2004
            first, second = betas
            if isinstance(first, float) and isinstance(second, float):
                yield first, second


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
    _rows: dict[_Likeness, list[_Generation]] = fresh(dict)
    _last: dict[str, list[_Generation]] = fresh(dict)  # rows by the id of their last optimizer
    _passes = fresh(Passes)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, BatchEvent):
            self._passes.enter(event)
        elif isinstance(event, OptimizerEvent):
            if event.change != "created" or not _keeps_state(event):
                return []
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
        elif isinstance(event, CallEvent) and event.family == Families.OPTIMIZER_STEP:
            row = self._last.get(str(event.owner))
            if row is None:
                return []
            last = row[-1]
            last.steps += 1
            if last.steps > 1:
                return []
            last.first_step = event.step
            self.triggered += 1
            return [self._violation(row, event)] if len(row) == _IN_A_ROW else []
        elif _may_reset(event):
            self._rows.clear()
            self._last.clear()
        return []

    def _violation(self, row: list[_Generation], call: CallEvent) -> Violation:
        first, second, third = (generation.made for generation in row)
        name = first.cls.rpartition(".")[2]
        return self.violation(
            call,
            step=row[1].first_step,
            stage="train",
            subject=Subject(api=f"{first.cls}.__init__"),
            symptom=Symptom.MADE_ANEW,
            message=f"{second.id} ({name}) is rebuilt over the parameters of {first.id}",
            expected="one optimizer for all epochs",
            observed=f"{first.id}, {second.id} and {third.id} ({name}), over the same parameters, "
            "are built one after the other, for one epoch each",
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
