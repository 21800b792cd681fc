"""Models that serve the training of another: for how many steps their weights stay the same.

Target networks, averages of weights, teachers that follow their student. They are not looked at in
every step, so what is seen is late by some steps; what is allowed is some times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traincheck.schema.apis import Marks
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Example, Subject, Symptom

ROLE = "serving model"  # where other claims have the role of a variable
NEEDS = Needs(states=frozenset({"parameter@untrained"}), kinds=frozenset({"mark"}))
WORDS: Mapping[str, str] = {
    "headline": "{subject} is no longer brought up to date",
    "likely_cause": (
        "What copies weights into {subject}, or averages them, is not reached, or has no effect."
    ),
    "fix": "Look for what brings {subject} up to date, and for the condition it stands under.",
}
MAX_PERIOD = 10_000
_SLACK = 3  # times the longest stretch seen
_MIN_MOVES = 3
_LOOKS = frozenset({Marks.NORMS, Marks.SERVES, Marks.UNTRAINED})
_HOLDS = Example(holds=True, context={})


@dataclass(slots=True)
class _Model:
    """Weights at the last look, and the step in which they were seen to be others before."""

    weights: object
    since: int


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a model. rest: steps since it moved, or since the first look."""

    model: str
    moved: bool
    rest: int
    event: MarkEvent


class Serving:
    """Books of one process."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def look(self, event: Event) -> _Look | None:
        """What is seen at this event; None if it is no look, or the first at a model."""
        if not isinstance(event, MarkEvent) or event.text not in _LOOKS or event.step is None:
            return None
        name, weights = event.model, event.data.get("weights")
        known = self._models.setdefault(name, _Model(weights, event.step))
        moved, rest = known.weights != weights, event.step - known.since
        if moved:
            known.weights, known.since = weights, event.step
        return _Look(name, moved, rest, event)


class ServingProposer:
    """Proposes how long a model that moves again and again may stay the same."""

    def __init__(self) -> None:
        self._serving = Serving()
        self._longest: dict[str, int] = {}
        self._moves: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        look = self._serving.look(event)
        if look is not None:
            self._longest[look.model] = max(self._longest.get(look.model, 0), look.rest)
            self._moves[look.model] = self._moves.get(look.model, 0) + look.moved

    def hypotheses(self) -> Iterator[Hypothesis]:
        for model, longest in sorted(self._longest.items()):
            period = _SLACK * longest
            if self._moves[model] >= _MIN_MOVES and period <= MAX_PERIOD:
                params = {"role": ROLE, "model": model, "period": period}
                yield Hypothesis(relation="periodic", params=params)

    def words(self) -> Iterator[str]:
        """Which models move."""
        return (word({"model": model}) for model, moves in self._moves.items() if moves)


class ServingDecider:
    """Decides at each look: it moved, or has been the same for too long."""

    def __init__(self, claims: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._claims = claims
        self._serving = Serving()
        self._told: dict[int, int] = {}  # claim -> rest that was told last, of this stretch

    def observe(self, event: Event) -> Iterator[tuple[int, Example]]:
        look = self._serving.look(event)
        for index, params in self._claims if look is not None else ():
            if look is None or params["model"] != look.model:
                continue
            late = look.rest - self._told.get(index, 0)
            if look.moved:
                self._told.pop(index, None)
                yield index, _HOLDS
            elif late > params["period"]:
                self._told[index] = look.rest
                yield index, _negative(params, look)


def word(params: Mapping[str, Any]) -> str:
    """Under which it is known whether this model moved."""
    return f"{ROLE} {params['model']} moves"


def text(params: Mapping[str, Any]) -> str:
    return (
        f"The weights of {params['model']}, which serves the training of another model, "
        f"change at least once every {params['period']} training steps"
    )


def _negative(params: Mapping[str, Any], look: _Look) -> Example:
    return Example(
        holds=False,
        context={},
        step=look.event.step,
        rank=look.event.rank,
        stage=look.event.stage,
        subject=Subject(module=look.model),
        expected=f"{look.model} is brought up to date every {params['period']} steps or sooner",
        observed=f"its weights have been the same for {look.rest} steps",
        evidence=(look.event,),
        symptom=Symptom.STATE_UNCHANGED,
    )
