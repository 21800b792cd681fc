"""Parameters are stored and updated in half precision."""

from __future__ import annotations

from traincheck.readings.step_facts import DISCOVERY
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_HALF = "bfloat16"  # TC803 checks float16
_NAMED = 8


class ParametersInHalf(BuiltInRule, code="TC805", severity="info"):
    """parameters-in-half: an optimizer updates half-precision parameters directly.

    What it checks:
        Parameters that require grad and are held by an optimizer are not in bfloat16.

    Why it matters:
        An update smaller than 1/256 of a bfloat16 weight is lost entirely. With usual learning
        rates, most updates late in training are that small.

    Fires on:
        - A model cast to bfloat16 whose parameters are passed to the optimizer.

    Stays quiet on:
        - Parameters in float32, also under autocast.
        - Frozen parameters in half precision.

    Fix:
        Keep parameters in float32 and use autocast, or an optimizer with float32 copies.

    Source:
        https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    title = "{variables} {is|are} trained in half precision"
    likely_cause = "The model may have been cast to {observed} before the optimizer was built."
    fix = "Keep parameters in float32 and use autocast, or an optimizer with float32 copies."
    needs = DISCOVERY

    def __init__(self) -> None:
        super().__init__()
        self._half: dict[int, StateEvent] = {}
        self._held: set[int] = set()
        self._reported: set[int] = set()

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, OptimizerEvent):
            self._held |= {identity for group in event.groups for identity in group.ids}
        elif isinstance(event, StateEvent):
            if event.role == "parameter" and event.summary is not None:
                if event.summary.dtype == _HALF and event.requires_grad:
                    self._half[event.identity] = event
                else:
                    self._half.pop(event.identity, None)
        elif isinstance(event, StepEvent) and event.counters.get("optimizer_step", 0):
            self.triggered += 1
            found = sorted(self._held & self._half.keys() - self._reported)
            self._reported.update(found)
            return [self._violation(self._half[identity], event) for identity in found[:_NAMED]]
        return []

    def _violation(self, state: StateEvent, step: StepEvent) -> Violation:
        dtype = "half precision" if state.summary is None else state.summary.dtype
        return Violation(
            check_id=self.code,
            step=step.step,
            rank=step.rank,
            stage="train",
            subject=Subject(variable=state.name),
            symptom=Symptom.PRECISION,
            message=f"the optimizer updates {state.name} in {dtype}",
            expected="float32 parameters, or float32 copies of them",
            observed=dtype,
            evidence=(state, step),
        )
