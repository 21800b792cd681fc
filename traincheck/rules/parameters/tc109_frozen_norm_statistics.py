"""The batch normalization of a frozen part keeps updating its statistics."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.step_rule import StepRule, proof
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_CONFIRMED = 2
_SOON = 16  # a parameter counts as trained for this many steps after an update


class FrozenNormStatistics(StepRule, code="TC109", severity="info"):
    """frozen-norm-statistics: a frozen batch normalization is in training mode.

    What it checks:
        Batch normalization whose weight is frozen runs in evaluation mode in training passes.

    Why it matters:
        requires_grad=False does not freeze running statistics. The frozen features drift with the
        batches, and evaluation differs from training. Often this does no harm, so it is only
        advice.

    Fires on:
        - Two training steps in a row with batch normalization in training mode whose weight does
          not require grad.

    Stays quiet on:
        - Frozen batch normalization in evaluation mode.
        - Trained batch normalization, also while the other network of a GAN is trained.
        - Averages of the trained weights that are written by hand, e.g. the momentum encoder of
          MoCo or the target network of BYOL.
        - Normalization without weights.

    Fix:
        Call eval() on the frozen part after model.train().

    Source:
        https://discuss.pytorch.org/t/freeze-batchnorm-layer-lead-to-nan/8385
    """

    title = "Frozen batch normalization keeps updating its statistics"
    likely_cause = "{observed}: requires_grad=False does not freeze running statistics."
    fix = "Call eval() on the frozen part after every model.train()."
    needs = DISCOVERY | GRADIENTS | MODES | Needs(states=frozenset({"parameter@step"}))

    def __init__(self) -> None:
        super().__init__()
        self._streak: dict[str, tuple[int, int | None]] = {}
        self._moved: dict[int, int] = {}  # parameter -> step
        self._steps = 0

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or not facts.updates():
            return []
        self._steps += 1
        applied = (moment.applied for moment in facts.updates())
        self._moved.update(dict.fromkeys(facts.changed.union(*applied), self._steps))
        frozen = {
            name
            for identity, parameter in self.ledger.parameters.items()
            if not parameter.requires_grad
            and self._steps - self._moved.get(identity, -_SOON) >= _SOON
            for name in parameter.names
        }
        found: list[Violation] = []
        streak: dict[str, tuple[int, int | None]] = {}
        for forward in facts.forwards:
            if not forward.call.grad_enabled:
                continue
            for path, call in forward.norms.items():
                self.triggered += 1
                if f"{path}.weight" not in frozen or call.args.get("training") is not True:
                    continue
                count, first = self._streak.get(path, (0, facts.event.step))
                streak[path] = (count + 1, first)
                if count + 1 == _CONFIRMED:
                    found.append(self._violation(path, first, call, facts))
        self._streak = streak
        return found

    def _violation(
        self, path: str, step: int | None, call: CallEvent, facts: StepFacts
    ) -> Violation:
        name = f"{path}.running_mean"
        return proof(
            (self.code, Symptom.SILENT_WRITE),
            facts,
            step=step,
            subject=Subject(variable=name, module=path),
            message=f"the weight of {path} is frozen, but its statistics change: {name}",
            expected="frozen batch normalization in evaluation mode",
            observed="batch normalization with a frozen weight is in training mode",
            evidence=(call,),
        )
