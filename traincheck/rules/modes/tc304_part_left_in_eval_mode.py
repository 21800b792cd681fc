"""A part of a model stays in evaluation mode while it is trained."""

from __future__ import annotations

from traincheck.readings.forwards import Forward
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_CONFIRMED = 2


class PartLeftInEvalMode(StepRule, code="TC304"):
    """part-left-in-eval-mode: dropout of a trained part is off while training goes on.

    What it checks:
        Dropout that was active in training steps stays active, as long as the model around it is in
        training mode and the parameters beside it are trained.

    Why it matters:
        The part is no longer regularized, and nothing shows it: the model as a whole is in training
        mode.

    Fires on:
        - Two training steps in a row with a dropout layer in evaluation mode that was in training
          mode before. The model is in training mode, and the step updates parameters beside the
          layer.

    Stays quiet on:
        - Frozen parts in evaluation mode.
        - Batch normalization that is put into evaluation mode on purpose.
        - A whole model in evaluation mode (TC301).
        - Parts that were in evaluation mode from the start.

    Fix:
        Call train() on the whole model after evaluation, not only on a part of it.

    Source:
        https://github.com/joeynmt/joeynmt/issues/184
    """

    title = "{subject} stays in evaluation mode while it is trained"
    likely_cause = (
        "eval() may have been called on this part, and then train() only on another part."
    )
    fix = "Call train() on the whole model after evaluation."
    needs = DISCOVERY | GRADIENTS | MODES

    def __init__(self) -> None:
        super().__init__()
        self._active: set[str] = set()
        self._streaks: dict[str, Streak] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        applied = facts.applied
        if not applied:
            return []
        books = self.ledger.parameters
        names = {name for i in applied & books.keys() for name in books[i].names}
        found: list[Violation] = []
        for forward in facts.forwards:
            if forward.call.grad_enabled and forward.is_training:
                found += self._compare(forward, names, facts)
        return found

    def _compare(self, forward: Forward, names: set[str], facts: StepFacts) -> list[Violation]:
        for path in forward.dropping:
            self.triggered += 1
            self._active.add(path)
            self._streaks.pop(path, None)
        found: list[Violation] = []
        for path, call in forward.idle.items():
            beside = f"{path.rpartition('.')[0]}."
            if (
                path in forward.dropping
                or path not in self._active
                or call.training is not False
                or not any(name.startswith(beside) for name in names)
            ):
                continue
            streak = extend(self._streaks, path, facts.event.step)
            if streak.count == _CONFIRMED:
                found.append(self._violation(path, call, streak, forward, facts))
        return found

    def _violation(
        self, path: str, call: CallEvent, streak: Streak, forward: Forward, facts: StepFacts
    ) -> Violation:
        return proof(
            (self.code, Symptom.EVAL_MODE),
            facts,
            step=streak.first,
            subject=Subject(module=path),
            message=f"{path} is in evaluation mode while {forward.path} around it is trained",
            expected=f"{path} in training mode, as in the previous steps",
            observed=f"the dropout of {path} is off",
            evidence=(call, forward.call),
        )
