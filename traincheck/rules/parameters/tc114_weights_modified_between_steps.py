"""Something other than the optimizer writes to parameters, time and again."""

from __future__ import annotations

from traincheck.facts.resumptions import brings_back
from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.external_writes import ExternalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.parameter_names import is_unowned
from traincheck.schema.torch_api import Families

_IN_A_ROW = 3


class WeightsModifiedBetweenSteps(
    EventRule, code="TC114", severity="info", aliases=("written-between-steps",)
):
    """weights-modified-between-steps: parameters change between two steps of their optimizer.

    What it checks:
        Parameters that an optimizer updates are changed by its step, by a load, and by nothing
        else.

    Why it matters:
        What a step has learned is overwritten, and the momentum of the optimizer belongs to weights
        that are gone. The loss may fall all the same.

    Fires on:
        Weights that are copied, scaled, clamped or averaged in the loop in three looks in a row:
        looks are taken at the first steps, and then before each eleventh.

    Stays quiet on:
        Weights that were loaded; parameters that two optimizers hold; the first step; models on a
        device; tensors that no module owns (an image that is kept within its range); what is
        written back to what it was before the next step, as averages that are swapped in for an
        evaluation.

    Fix:
        Let the optimizer do it: weight_decay, a parametrization, or averages in a model of their
        own. If it is meant, as the limits of a critic are, ignore TC114.

    Source:
        https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    title = "Something other than the optimizer writes to {variables}"
    likely_cause = "The loop, or a forward pass, changes weights in place between two steps."
    fix = (
        "Remove the write to {variables} outside of optimizer.step() (copy_(), .data, an "
        "in-place operation), or ignore TC114 where it is meant, as to clip weights."
    )
    needs = needs_of(ExternalWrites) | Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"checkpoint"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, dict[str, int]] = {}  # optimizer -> its parameters
        self._first: dict[str, int | None] = {}
        self._told: set[str] = set()
        self._is_loaded = False  # since the last look

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
            elif times >= _IN_A_ROW and name not in self._told:
                self._told.add(name)
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
                f"the values differ from those that {owner} left, at {_IN_A_ROW} scans in a row"
            ),
            evidence=(event,),
        )
