"""States that are loaded and lost, or kept although they are the worst."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from traincheck.readings.evaluations import EVALUATIONS, Evaluation, KeptStates
from traincheck.readings.provider import RunStates
from traincheck.rules.base.rule import BuiltInRule, EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import FollowedValue, LoadFollowed
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.words import joined

_NEAR = 0.5  # of the way that the load went: how near to the values before it
_USUAL = 4.0  # by how much the first update must exceed the second one
_SHARE = 0.25  # of the changed parameters
_MOST_NAMES = 3


# Compares distances of samples.
class LoadUndoneByUpdate(EventRule, code="TC050", severity="error"):
    """load-undone-by-update: the first update after a load restores the values from before it.

    What it checks:
        After load_state_dict(), the first update leaves each parameter nearer to the loaded value
        than to the value before the load.

    Why it matters:
        The program keeps another copy of the weights, made before the load, and writes it over the
        loaded ones. Training starts from random weights, and the checkpoint is lost without a
        message.

    Fires on:
        - float32 master weights that an optimizer copied before model.load_state_dict().
        - An average or a buffer of flat parameters that is copied into the model after each step
          and was made before the load.

    Stays quiet on:
        - Updates that start from the loaded values, whatever the learning rate.
        - Models that are written to again before they are trained, e.g. weights of an average that
          are loaded for evaluation and taken back.
        - Models that are loaded again before the second update, e.g. inner loops of meta-learning.
        - First updates that are no larger than the second one.
        - A load that changes nothing.

    Fix:
        Load the model before the optimizer or average copies its weights, or copy them again after
        the load.

    Source:
        https://github.com/NovaSky-AI/SkyRL/pull/2149, https://github.com/NVIDIA/apex/issues/706
    """

    title = "The first update after a load puts {subject} back to its values before the load"
    likely_cause = (
        "A copy of the weights that was made before load_state_dict(){where}, such as float32 "
        "master weights or an average, is written over the loaded ones: {observed}."
    )
    fix = (
        "Call load_state_dict() before the optimizer (or average) that copies the weights is "
        "created, or refresh its copies after the load: master.data.copy_(parameter)."
    )
    needs = needs_of(LoadFollowed)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, LoadFollowed)
        if found is None or not found.values:
            return []
        self.triggered += 1
        undone = {name: value for name, value in found.values.items() if _is_undone(value)}
        if not undone or len(undone) < _SHARE * min(found.parameters, len(found.values)):
            return []
        names = joined(sorted(undone), _MOST_NAMES)
        jump = _total(value.jump for value in undone.values())
        back = _total(value.back for value in undone.values())
        moved = _total(value.moved for value in undone.values())
        later = _total(value.later for value in undone.values())
        line = f" at {short(found.where)}" if found.where else ""
        violation = self.violation(
            event,
            subject=Subject(module=found.model),
            symptom=Symptom.NOT_RESTORED,
            message=f"the first update after the load of {found.model}{line} moves {names} to the "
            "values from before the load",
            expected=f"weights near the loaded ones (the second update moves them by {later:.3g})",
            observed=f"the load moved {len(undone)} of {found.parameters} parameters by "
            f"{jump:.3g}; the first update moved them by {moved:.3g}, to a distance of {back:.3g} "
            "from their values before the load",
        )
        return [replace(violation, step=found.step)]


def _is_undone(value: FollowedValue) -> bool:
    """Whether an update that is larger than the next one leads back."""
    numbers = (value.jump, value.moved, value.back, value.later)
    if not all(map(math.isfinite, numbers)):
        return False
    return value.back < _NEAR * value.jump < value.moved and value.moved > _USUAL * value.later


def _total(norms: Iterable[float]) -> float:
    return math.sqrt(sum(norm * norm for norm in norms))


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
