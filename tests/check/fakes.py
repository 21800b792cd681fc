"""A relation that can be told what to say, and checks made with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from traincheck.schema.claims import Hypothesis, Invariant, Needs, Precondition
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

STEPS = Needs(kinds=frozenset({"step"}))


class EverySteps:
    """Claims that a counter of every step has a value: ``{"counter": "backward", "value": 1}``."""

    name = "every-step"

    def proposer(self) -> Any:
        raise NotImplementedError

    def decider(self, claims: Sequence[Hypothesis]) -> EverySteps.Decider:
        return self.Decider([claim.params for claim in claims])

    def needs(self, claim: Hypothesis) -> Needs:
        return STEPS | Needs(calls=frozenset(claim.params.get("calls", ())))

    def text(self, claim: Hypothesis) -> str:
        return f"every step has {claim.params['value']} {claim.params['counter']}"

    def chance(self, claim: Hypothesis, positive: int) -> float:
        return 0.5**positive

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        return claim == other

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity="error", title=text
        )

    class Decider:
        def __init__(self, claims: Sequence[Mapping[str, Any]]) -> None:
            self._claims = [(claim["counter"], claim["value"], claim) for claim in claims]

        def observe(self, event: Event) -> Iterable[tuple[int, Example]]:
            if isinstance(event, CallEvent):
                return
            assert isinstance(event, StepEvent)
            if not event.complete or not event.recorded:
                return
            context = {"stage": event.stage, "step_is_odd": bool((event.step or 0) % 2)}
            for index, (counter, value, claim) in enumerate(self._claims):
                if claim.get("fails_at") == event.step:
                    raise RuntimeError("told to fail")
                found = event.counters.get(counter, 0)
                yield (
                    index,
                    Example(
                        holds=found == value,
                        context=context,
                        step=event.step,
                        rank=event.rank,
                        stage=event.stage,
                        subject=Subject(api=counter),
                        expected=f"{value} {counter}",
                        observed=f"{found} {counter}",
                        evidence=(event,),
                        symptom=Symptom.MISSING_CALL,
                    ),
                )

        def finish(self) -> Iterable[tuple[int, Example]]:
            for index, (counter, _, claim) in enumerate(self._claims):
                if claim.get("breaks_at_end"):
                    yield index, Example(holds=False, context={}, subject=Subject(api=counter))


RELATIONS = {EverySteps.name: EverySteps()}


def invariant(
    id: str = "inv-1",
    counter: str = "backward",
    value: int = 1,
    precondition: Precondition | None = None,
    **more: Any,
) -> Invariant:
    """Every step has ``value`` times ``counter``."""
    claim = Hypothesis(
        relation=EverySteps.name, params={"counter": counter, "value": value, **more}
    )
    text = f"every step has {value} {counter}"
    always = Precondition()
    return Invariant(id=id, hypothesis=claim, precondition=precondition or always, text=text)
