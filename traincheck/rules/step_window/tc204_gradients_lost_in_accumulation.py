"""Gradients of all but the last batch of an accumulation window are cleared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class GradientsLostInAccumulation(StepRule, code="TC204", severity="error"):
    """gradients-lost-in-accumulation: zero_grad() runs inside the accumulation window.

    What it checks:
        If an optimizer steps once for several batches, the gradients of all these batches are
        present when it steps.

    Why it matters:
        Only the last batch of each window trains the model. The other gradients are computed and
        discarded, and the effective batch is several times smaller than it seems.

    Fires on:
        - Several windows in a row in which an optimizer steps once for the same number of batches
          of one loader, and zero_grad() has cleared the gradients of every batch but the last.
        - Without a loader: gradients add up over several backward passes of one line, zero_grad()
          clears them, and the optimizer steps after one more pass of that line.

    Stays quiet on:
        - Accumulation that clears gradients once per step.
        - Gradients cleared on one batch (adversarial examples, sharpness-aware steps, several
          tasks).
        - The generator's backward() that reaches a discriminator, and reaches only that if the
          generator is cut off (TC203).
        - Steps that GradScaler skips.
        - A batch that is skipped occasionally.
        - A loop without a DataLoader that clears before each backward pass, perhaps of one batch.
        - Programs that sum up gradients themselves and write them over those of backward()
          (differential privacy).

    Fix:
        Call zero_grad() after the step, in the branch that steps.

    Options:
        - windows: number of windows in a row that prove the fault.

    Source:
        https://github.com/bytetriper/RAE/issues/67, https://github.com/pytorch/torchtitan/pull/3575
    """

    title = "Gradients are cleared inside the accumulation window"
    title_of_several = "Gradients of {optimizer} are cleared inside its accumulation window"
    likely_cause = (
        "zero_grad(){where} clears gradients that the optimizer has not used yet, as it steps only "
        "once per several backward passes: {observed}."
    )
    fix = "Call optimizer.zero_grad() right after optimizer.step(), and nowhere else."
    fix_of_several = "Call zero_grad() of {optimizer} right after its step(), and nowhere else."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALER_STEP}), kinds=frozenset({"batch", "mark"}))
    )
    windows: int = 3
    _windows: dict[str, _Window] = fresh(dict)
    _runs: dict[str, _Run] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        # Sums that the program keeps itself are not recorded
        if facts.has_own or not facts.is_complete:
            self._windows.clear()
            self._runs.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            for key, holder in self.ledger.holders.items():
                self._follow(self._windows.setdefault(key, _Window()), holder.ids, moment, facts)
            owner = moment.call.owner
            if moment.family in (Families.OPTIMIZER_STEP, Families.SCALER_STEP):
                if owner in self._windows:
                    found += self._close(str(owner), moment, facts)
                # Used by any optimizer, or computed for one that it does not reach
                for window in self._windows.values():
                    window.pending.clear()
        return found

    def _follow(
        self, window: _Window, held: frozenset[int], moment: Moment, facts: StepFacts
    ) -> None:
        if window.pending and not window.pending.isdisjoint(moment.cleared):
            if window.pending <= moment.cleared and moment.family == Families.ZERO_GRAD:
                if not window.lost:
                    window.step = window.pending_step
                window.together = len(window.passes)
                window.lost += window.passes
                window.cleared_by = moment.call
            window.pending -= moment.cleared
            if not window.pending:
                window.passes.clear()
        came = moment.reached & held
        if came and moment.family == Families.BACKWARD:
            if not window.pending:
                window.pending_step = facts.event.step
            window.pending |= came
            window.passes.append(_Pass(moment.batch, moment.call.where or ""))

    def _close(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        window = self._windows[owner]
        if moment.family == Families.SCALER_STEP and not window.lost:
            return []
        self._windows[owner] = _Window()
        if not window.pending and not moment.applied:
            self._runs.pop(owner, None)
            return []
        self.triggered += 1
        if not window.lost or not window.is_of_many:
            self._runs.pop(owner, None)
            return []
        run = self._runs.get(owner)
        if run is None or run.lost != len(window.lost):
            run = self._runs[owner] = _Run(len(window.lost), 0, window.step)
        run.count += 1
        if run.count != self.windows or window.cleared_by is None:
            return []
        label = self.ledger.holders[owner].label
        whole = len(window.lost) + len(window.passes)
        what = "backward passes" if window.lost[0].batch is None else "batches"
        return self.proven(
            facts,
            step=run.step,
            subject=Subject(api=Families.ZERO_GRAD),
            symptom=Symptom.GRADIENT_LOST,
            message=f"zero_grad() clears the gradients of {whole - 1} of every {whole} {what} "
            f"before {label} steps",
            expected=f"the step of {label} applies the gradients of all {whole} {what}",
            observed=f"{label} steps once for {whole} {what} but has the gradient of only one",
            evidence=(window.cleared_by, moment.call),
            optimizer=self.ledger.one_of_several(owner),
        )


class _Pass(NamedTuple):
    """A backward pass: the batch before it, if a loader gave one, and the line that calls it."""

    batch: tuple[str, int, int] | None
    where: str


@dataclass(slots=True)
class _Window:
    """State since the last step of an optimizer.

    Attributes:
        pending: gradients of backward() that no step has used.
        passes: those that computed them.
        lost: the passes whose gradients were cleared. together: how many by the last clearing.
    """

    pending: set[int] = field(default_factory=set)
    passes: list[_Pass] = field(default_factory=list)
    lost: list[_Pass] = field(default_factory=list)
    together: int = 0
    step: int | None = None  # step in which the first lost gradients were computed
    pending_step: int | None = None
    cleared_by: CallEvent | None = None

    @property
    def is_of_many(self) -> bool:
        """Whether the passes are of different batches, which were to be accumulated."""
        passes = [*self.lost, *self.passes]
        batches = [one.batch for one in passes if one.batch is not None]
        if len(batches) == len(passes):
            return len({batch[0] for batch in batches}) == 1 and len(set(batches)) == len(batches)
        places = {one.where for one in passes}
        is_added_up = self.together == len(self.lost) > 1 == len(self.passes)
        return not batches and is_added_up and len(places) == 1 and places != {""}


@dataclass(slots=True)
class _Run:
    """Windows in a row that lost the same number of batches."""

    lost: int = 0
    count: int = 0
    step: int | None = None
