"""Code other than the optimizer writes to parameters repeatedly."""

from __future__ import annotations

from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.words import is_unowned

_IN_A_ROW = 3


class WeightsModifiedBetweenSteps(
    EventRule, code="TC114", severity="info", aliases=("written-between-steps",)
):
    """weights-modified-between-steps: parameters change between two steps of their optimizer.

    What it checks:
        Parameters that an optimizer updates are changed only by its step or by loading a
        checkpoint.

    Why it matters:
        The write overwrites the progress of the step, and the momentum of the optimizer belongs to
        weights that no longer exist. The loss may fall all the same.

    Fires on:
        - Weights that are copied, scaled, clamped or averaged in the loop, at three scans in a row.
          Scans run at the first steps, and then before every 11th.

    Stays quiet on:
        - Weights that were loaded.
        - Parameters that two optimizers hold.
        - The first step.
        - Models on a device.
        - Tensors that no module owns, e.g. an image that is kept within its range.
        - Values that are restored before the next step, e.g. averages that are swapped in for an
          evaluation.

    Fix:
        Let the optimizer do it: use weight_decay, a parametrization, or averages in a separate
        model. If the write is intended, e.g. to clip the weights of a critic, ignore TC114.

    Source:
        https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    title = "Something other than the optimizer writes to {variables}"
    likely_cause = "The loop, or a forward pass, changes weights in place between two steps."
    fix = (
        "Remove the write to {variables} outside of optimizer.step() (copy_(), .data, an in-place "
        "operation), or ignore TC114 if the write is intended, e.g. to clip weights."
    )
    needs = needs_of(ExternalWrites) | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"checkpoint"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, dict[str, int]] = {}  # optimizer -> its parameters
        self._first: dict[str, int | None] = {}
        self._reported: set[str] = set()
        self._is_loaded = False  # since the last scan

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            self._is_loaded |= brings_back(event)
        look = observed(event, ExternalWrites)
        if look is None:
            return []
        is_loaded, self._is_loaded = self._is_loaded, False
        if is_loaded:
            return []
        self.triggered += 1
        written = [name for name in look.names if not is_unowned(name)]
        owner = look.owner
        before = self._times.get(owner, {})
        self._times[owner] = {name: before.get(name, 0) + 1 for name in written}
        found = []
        for name, times in self._times[owner].items():
            if times == 1:
                self._first[name] = event.step
            elif times >= _IN_A_ROW and name not in self._reported:
                self._reported.add(name)
                found.append(self._violation(event, owner, name, self._first[name]))
        return found

    def _violation(self, event: Event, owner: str, name: str, step: int | None) -> Violation:
        return Violation(
            check_id=self.code,
            step=step,
            rank=event.rank,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.ADVICE,
            message=f"something other than {owner} writes to {name} between its steps",
            expected=f"no write to {name} between two steps of {owner}",
            observed=(
                f"at {_IN_A_ROW} scans in a row the values differ from those that {owner} left"
            ),
            evidence=(event,),
        )
