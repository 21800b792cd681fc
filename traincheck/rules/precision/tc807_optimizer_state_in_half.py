"""Moments of an optimizer have less precision than the weights. Judges single saves and loads."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_HALF = frozenset({"float16", "bfloat16"})


class OptimizerStateInHalf(EventRule, code="TC807", severity="info"):
    """optimizer-state-in-half: moments are stored in half precision and weights are not.

    What it checks:
        The optimizer state in a checkpoint has the precision of the parameters of the model.

    Why it matters:
        Second moments are squares of gradients. In float16 most of them are zero. In bfloat16 an
        average with beta2 = 0.999 hardly ever changes. Updates become too large or stop.

    Fires on:
        - State that was converted with the model (state_dict cast to half to save space), saved or
          loaded beside float32 weights.

    Stays quiet on:
        - Weights that are also in half precision (TC805).
        - Integer states, e.g. of 8-bit optimizers.

    Fix:
        Save and load optimizer.state_dict() without a conversion.

    Source:
        https://github.com/pytorch/pytorch/issues/40497
    """

    title = "The state of the optimizer is in half precision"
    likely_cause = "The saved state may have been converted{where}, but the weights were not."
    fix = "Store moments in float32: save and load the optimizer's state without a conversion."
    needs = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"checkpoint", "step"}))

    def __init__(self) -> None:
        super().__init__()
        self._dtypes: set[str] = set()
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.summary is not None:
                self._dtypes.add(event.summary.dtype)
        elif isinstance(event, CheckpointEvent) and not self._is_reported and self._dtypes:
            return self._file(event)
        return []

    def _file(self, event: CheckpointEvent) -> list[Violation]:
        for part in event.parts.values():
            if not isinstance(part, Mapping) or part.get("kind") != "optimizer":
                continue
            found = set(map(str, part.get("dtypes") or ()))
            self.triggered += bool(found)
            half = sorted(found & _HALF)
            if not half or not self._dtypes.isdisjoint(_HALF):
                continue
            self._is_reported = True
            return [
                self.violation(
                    event,
                    subject=Subject(api="torch.optim.Optimizer.state_dict"),
                    symptom=Symptom.ADVICE,
                    message=f"the optimizer state in {event.path or 'the file'} is {half[0]}, but "
                    f"the weights are {min(self._dtypes)}",
                    expected=f"moments in {min(self._dtypes)}",
                    observed=f"moments in {', '.join(half)}",
                )
            ]
        return []
