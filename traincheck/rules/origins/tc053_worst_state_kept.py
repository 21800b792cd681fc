"""The state that is restored or saved as the best is that of the worst evaluation."""

from __future__ import annotations

from itertools import pairwise

from traincheck.readings.evaluations import EVALUATIONS, Evaluation, KeptStates
from traincheck.readings.provider import RunStates
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation

_LATER = 3  # evaluations after the one that is kept
_FALLING = 0.75  # share of them whose loss is lower than the one before
_BETTER = 0.9  # of the kept loss: the best one is at most this


class WorstStateKept(BuiltInRule, code="TC053"):
    """worst-state-kept: the weights kept as the best are those with the highest evaluation loss.

    What it checks:
        The state that is restored at the end, or saved last to a file named "best", is not that of
        the evaluation with the highest loss, if evaluations got better one after the other.

    Why it matters:
        The comparison that selects the best state is reversed, e.g. `val_loss > best`. The least
        trained weights are tested, saved and deployed.

    Fires on:
        - A load, after the last update, of the weights of an evaluation that had the highest loss
          of all, followed by at least three evaluations with falling losses.
        - A file with "best" in its name that was written last right after such an evaluation.

    Stays quiet on:
        - Losses that rise or do not change: another metric may select the state.
        - Loads that are followed by training, e.g. a rewind, a fold or a trial.
        - Weights from before the first update.
        - Files whose name does not say that they hold the best state.
        - Evaluations without a loss of torch.nn.functional.

    Fix:
        Keep the state when the loss falls: if val_loss < best, with best = float("inf") at first.

    Source:
        https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.ModelCheckpoint.html
    """

    title = "The state kept as the best is that of the worst evaluation"
    likely_cause = (
        "The comparison that selects the best state may be reversed, such as `val_loss > "
        "best` or mode='max' for a loss: {observed}."
    )
    fix = (
        "Keep the state when the loss falls: `if val_loss < best: best = val_loss`, with best = "
        "float('inf') at first (mode='min', greater_is_better=False)."
    )
    needs = EVALUATIONS
    uses = (KeptStates,)
    observes = Needs(kinds=frozenset({"checkpoint"}))

    def bind(self, run_states: RunStates) -> None:
        self._states = run_states.of(KeptStates)

    def observe(self, event: Event) -> list[Violation]:
        """Nothing: which state is kept is known at the end."""
        return []

    def finish(self) -> list[Violation]:
        for event, evaluation in self._states.kept():
            self.triggered += 1
            if self._is_worst(evaluation):
                known = [one for one in self._states.evaluations.all if one.loss is not None]
                best = min(known, key=lambda one: one.loss or 0.0)
                is_save = event.op == "save"
                what = f"{event.path} holds" if is_save else f"{event.target} gets"
                return self.found(
                    event,
                    subject=Subject(module=event.target)
                    if not is_save
                    else Subject(api="torch.save"),
                    symptom=Symptom.NOT_RESTORED,
                    message=f"{what} the weights of step {evaluation.step}, whose evaluation loss "
                    f"is the highest of {len(known)} evaluations",
                    expected=f"the weights of the lowest loss, {best.loss:.4g} in step {best.step}",
                    observed=f"evaluation losses fall from {evaluation.loss:.4g} in step "
                    f"{evaluation.step} to {known[-1].loss:.4g} in step {known[-1].step}, and the "
                    f"state of step {evaluation.step} is kept",
                    evidence=(event,) if evaluation.first is None else (event, evaluation.first),
                )
        return []

    def _is_worst(self, kept: Evaluation) -> bool:
        """Whether an evaluation had the highest loss, and losses fell from there."""
        known = [one for one in self._states.evaluations.all if one.loss is not None]
        if kept not in known:
            return False
        losses = [one.loss or 0.0 for one in known]
        place = known.index(kept)
        later = losses[place:]
        falls = sum(after < before for before, after in pairwise(later))
        return (
            len(later) > _LATER
            and losses[place] == max(losses) > 0
            and max(later[1:]) < losses[place]
            and falls >= _FALLING * (len(later) - 1)
            and max(min(later), later[-1]) <= _BETTER * losses[place]
        )
