"""Auxiliary models, which serve the training of another: whether they change and are called.

They are not scanned in every step, so a change is seen some steps late. The limits allow for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.modal_modules import (
    AUXILIARY,
    AuxiliaryModel,
    AuxiliaryModels,
    auxiliary_call,
)
from traincheck.readings.steps import is_judged
from traincheck.relations.base import SATISFIED, ProposerBase, counterexample
from traincheck.schema.claims import USE_SCHEDULE, Hypothesis, Needs
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom

ROLE = "serving model"  # in place of the role of a variable
NEEDS = AUXILIARY | Needs(kinds=frozenset({"step"}))
MOVES: Mapping[str, str] = {
    "headline": "{subject} is no longer updated",
    "likely_cause": (
        "The code that copies or averages weights into {subject} is not reached, or has no effect."
    ),
    "fix": "Find the code that updates {subject}, and the condition that it depends on.",
}
ASKED: Mapping[str, str] = {
    "headline": "{subject} is no longer called",
    "likely_cause": "Another model is called in place of {subject}, or none.",
    "fix": "Find the lines that call {subject}: targets should come from it.",
}
MAX_PERIOD = 10_000
_SLACK = 3  # times the longest interval seen
_MIN_MOVES = 3
_OFTEN = 3  # steps: rarer calls may be an evaluation
_SELDOM = _SLACK * USE_SCHEDULE.every * _OFTEN


class _CallGaps:
    """Recorded training steps in which models were not called."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}  # training step of the last call
        self.steps = 0

    def look(self, model: str) -> int:
        """A model is called. Return the steps since its last call, or since the start."""
        gap = self.steps - self.last.get(model, 0)
        self.last[model] = self.steps
        return gap

    def step(self, event: StepEvent) -> None:
        self.steps += is_judged(event)


class AuxiliaryProposer(ProposerBase):
    """Proposes how long an auxiliary model may stay the same, or not be called."""

    def __init__(self) -> None:
        self._models, self._call_gaps = AuxiliaryModels(), _CallGaps()
        self._looks: Counter[str] = Counter()
        self._gaps: dict[str, float] = {}  # most steps between two calls
        self._longest: dict[str, int] = {}
        self._moves: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._call_gaps.step(event)
        elif (call := auxiliary_call(event)) is not None:
            self._looks[call.model] += 1
            share = 1 if self._looks[call.model] <= USE_SCHEDULE.first else USE_SCHEDULE.every
            often = self._call_gaps.look(call.model) / share
            self._gaps[call.model] = max(self._gaps.get(call.model, 0), often)
            if event.step is not None:
                seen = self._models.look(call, event.step)
                self._longest[seen.name] = max(self._longest.get(seen.name, 0), seen.rest)
                self._moves[seen.name] = self._moves.get(seen.name, 0) + seen.moved

    def hypotheses(self) -> Iterator[Hypothesis]:
        for model, longest in sorted(self._longest.items()):
            period = _SLACK * longest
            if self._moves[model] >= _MIN_MOVES and period <= MAX_PERIOD:
                params = {"role": ROLE, "model": model, "period": period}
                yield Hypothesis(relation="periodic", params=params)
        for model, seldom in sorted(self._gaps.items()):
            rest = (self._call_gaps.steps - self._call_gaps.last[model]) / USE_SCHEDULE.every
            if max(seldom, rest) <= _OFTEN and self._looks[model] > USE_SCHEDULE.first:
                params = {"role": ROLE, "model": model, "asked": _SELDOM}
                yield Hypothesis(relation="periodic", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the models that change or are called."""
        for model, moves in self._moves.items():
            yield word({"model": model, "asked": 0})
            if moves:
                yield word({"model": model})


class AuxiliaryDecider:
    """Decides when a model is scanned, and when a step ends without a call of it."""

    def __init__(self, claims: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._claims = [claim for claim in claims if "period" in claim[1]]
        self._asking = [claim for claim in claims if "asked" in claim[1]]
        self._models, self._call_gaps = AuxiliaryModels(), _CallGaps()
        self._reported: dict[int, int] = {}  # claim -> last reported rest of this interval

    def step(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        """Decide once for each interval in which a model is not called."""
        self._call_gaps.step(event)
        for index, params in self._asking:
            left_out = self._call_gaps.steps - self._call_gaps.last.get(params["model"], 0)
            if left_out == params["asked"] + 1 and is_judged(event):
                yield index, _left_out(params, event)

    def mark(self, event: MarkEvent) -> Iterator[tuple[int, Example]]:
        """Enter a mark; it may be a scan of a model."""
        call = auxiliary_call(event)
        if call is None:
            return
        gap = self._call_gaps.look(call.model)
        for index, params in self._asking:
            if params["model"] == call.model and gap <= params["asked"]:
                yield index, SATISFIED
        if event.step is not None:
            yield from self._scan(self._models.look(call, event.step), event)

    def _scan(self, model: AuxiliaryModel, event: MarkEvent) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims:
            if params["model"] != model.name:
                continue
            late = model.rest - self._reported.get(index, 0)
            if model.moved:
                self._reported.pop(index, None)
                yield index, SATISFIED
            elif late > params["period"]:
                self._reported[index] = model.rest
                yield index, _negative(params, model, event)


def is_known(params: Mapping[str, Any]) -> bool:
    """Whether some version wrote these parameters."""
    limits = [params[key] for key in ("period", "asked") if key in params]
    return "model" in params and len(limits) == 1 and 1 <= limits[0] <= MAX_PERIOD


def words_of(params: Mapping[str, Any]) -> Mapping[str, str]:
    """The texts of a finding."""
    return ASKED if "asked" in params else MOVES


def word(params: Mapping[str, Any]) -> str:
    """The term for a model that changed, or was called."""
    return f"{ROLE} {params['model']} {'is asked' if 'asked' in params else 'moves'}"


def text(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    if "asked" in params:
        return (
            f"{params['model']}, which serves the training of another model, is called in every "
            "few training steps"
        )
    return (
        f"The weights of {params['model']}, which serves the training of another model, "
        f"change at least once every {params['period']} training steps"
    )


def _negative(params: Mapping[str, Any], model: AuxiliaryModel, event: MarkEvent) -> Example:
    return counterexample(
        event,
        Subject(module=model.name),
        f"{model.name} is updated at least every {params['period']} steps",
        f"its weights have been the same for {model.rest} steps",
        Symptom.STATE_UNCHANGED,
        stage=event.stage,
    )


def _left_out(params: Mapping[str, Any], event: StepEvent) -> Example:
    return counterexample(
        event,
        Subject(module=params["model"]),
        f"{params['model']} is called without grad in every few training steps",
        f"it was not called for more than {params['asked']} steps",
        Symptom.MISSING_CALL,
    )
