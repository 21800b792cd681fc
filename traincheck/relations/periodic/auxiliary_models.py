"""Models that serve the training of another: how long their weights rest, whether they are asked.

They are not looked at in every step, so what is seen is late by some steps; what is allowed is some
times as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.auxiliary_models import (
    AUXILIARY,
    AuxiliaryModel,
    AuxiliaryModels,
    auxiliary_call,
)
from traincheck.facts.steps import is_judged
from traincheck.schema.claims import USE_SCHEDULE, Hypothesis, Needs
from traincheck.schema.events import Event, MarkEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom

ROLE = "serving model"  # where other claims have the role of a variable
NEEDS = AUXILIARY | Needs(kinds=frozenset({"step"}))
MOVES: Mapping[str, str] = {
    "headline": "{subject} is no longer brought up to date",
    "likely_cause": (
        "What copies weights into {subject}, or averages them, is not reached, or has no effect."
    ),
    "fix": "Look for what brings {subject} up to date, and for the condition it stands under.",
}
ASKED: Mapping[str, str] = {
    "headline": "{subject} is no longer asked",
    "likely_cause": "Another model is called in place of {subject}, or none.",
    "fix": "Look for the lines that call {subject}: targets are to come from it.",
}
MAX_PERIOD = 10_000
_SLACK = 3  # times the longest stretch seen
_MIN_MOVES = 3
_OFTEN = 3  # steps: what is asked less often may be an evaluation
_SELDOM = _SLACK * USE_SCHEDULE.every * _OFTEN
_HOLDS = Example(holds=True, context={})


class _Asked:
    """For how many recorded training steps a model was not looked at."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}  # training step of the last look
        self.steps = 0

    def look(self, model: str) -> int:
        """It is asked: for how long it was not, also before the first time."""
        gap = self.steps - self.last.get(model, 0)
        self.last[model] = self.steps
        return gap

    def step(self, event: StepEvent) -> None:
        self.steps += is_judged(event)


class ServingProposer:
    """Proposes how long a model that moves again and again may stay the same, or be left out."""

    def __init__(self) -> None:
        self._models, self._asked = AuxiliaryModels(), _Asked()
        self._looks: Counter[str] = Counter()
        self._gaps: dict[str, float] = {}  # steps from one time to the next, at most
        self._longest: dict[str, int] = {}
        self._moves: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._asked.step(event)
        elif (call := auxiliary_call(event)) is not None:
            self._looks[call.model] += 1
            share = 1 if self._looks[call.model] <= USE_SCHEDULE.first else USE_SCHEDULE.every
            often = self._asked.look(call.model) / share
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
            rest = (self._asked.steps - self._asked.last[model]) / USE_SCHEDULE.every
            if max(seldom, rest) <= _OFTEN and self._looks[model] > USE_SCHEDULE.first:
                params = {"role": ROLE, "model": model, "asked": _SELDOM}
                yield Hypothesis(relation="periodic", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Which models move, or are asked."""
        for model, moves in self._moves.items():
            yield word({"model": model, "asked": 0})
            if moves:
                yield word({"model": model})


class ServingDecider:
    """Decides at looks, when a model has rested for too long, and at steps, when it is left out."""

    def __init__(self, claims: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._claims = [claim for claim in claims if "period" in claim[1]]
        self._asking = [claim for claim in claims if "asked" in claim[1]]
        self._models, self._asked = AuxiliaryModels(), _Asked()
        self._told: dict[int, int] = {}  # claim -> rest that was told last, of this stretch

    def step(self, event: StepEvent) -> Iterator[tuple[int, Example]]:
        """Once for each stretch in which a model is left out."""
        self._asked.step(event)
        for index, params in self._asking:
            left_out = self._asked.steps - self._asked.last.get(params["model"], 0)
            if left_out == params["asked"] + 1 and is_judged(event):
                yield index, _left_out(params, event)

    def mark(self, event: MarkEvent) -> Iterator[tuple[int, Example]]:
        """A model was looked at, if it is a mark of that."""
        call = auxiliary_call(event)
        if call is None:
            return
        gap = self._asked.look(call.model)
        for index, params in self._asking:
            if params["model"] == call.model and gap <= params["asked"]:
                yield index, _HOLDS
        if event.step is not None:
            yield from self._look(self._models.look(call, event.step), event)

    def _look(self, model: AuxiliaryModel, event: MarkEvent) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims:
            if params["model"] != model.name:
                continue
            late = model.rest - self._told.get(index, 0)
            if model.moved:
                self._told.pop(index, None)
                yield index, _HOLDS
            elif late > params["period"]:
                self._told[index] = model.rest
                yield index, _negative(params, model, event)


def is_known(params: Mapping[str, Any]) -> bool:
    """Whether some version wrote these parameters."""
    limits = [params[key] for key in ("period", "asked") if key in params]
    return "model" in params and len(limits) == 1 and 1 <= limits[0] <= MAX_PERIOD


def words_of(params: Mapping[str, Any]) -> Mapping[str, str]:
    """What a finding says."""
    return ASKED if "asked" in params else MOVES


def word(params: Mapping[str, Any]) -> str:
    """Under which it is known whether this model moved, or was asked."""
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
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        stage=event.stage,
        subject=Subject(module=model.name),
        expected=f"{model.name} is brought up to date every {params['period']} steps or sooner",
        observed=f"its weights have been the same for {model.rest} steps",
        evidence=(event,),
        symptom=Symptom.STATE_UNCHANGED,
    )


def _left_out(params: Mapping[str, Any], event: StepEvent) -> Example:
    return Example(
        holds=False,
        context={},
        step=event.step,
        rank=event.rank,
        subject=Subject(module=params["model"]),
        expected=f"{params['model']} is called without grad in every few training steps",
        observed=f"it was not called for more than {params['asked']} steps",
        evidence=(event,),
        symptom=Symptom.MISSING_CALL,
    )
