"""The relation *schedule*: the shape of the curve that learning rates of a program follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.facts.steps import is_skipped
from traincheck.relations.base import RelationBase
from traincheck.relations.example_cache import Examples
from traincheck.relations.phrasing import in_program
from traincheck.relations.schedule.epochs import FOLLOWED, Turn, Turns, out_of_turn
from traincheck.relations.schedule.proposer import ScheduleProposer
from traincheck.relations.schedule.rates import (
    BY_EPOCH,
    CONSTANT,
    FALLS,
    KNOWN,
    MOVES,
    SHAPES,
    TEXTS,
    WARM_UP,
    Look,
    Rate,
    Rates,
    fits,
    is_meant,
)
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.torch_api import Families

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)
_PATIENCE = 3  # steps that a rate may stay what it was at first, before it counts as not moving
_MOVING = 2  # changes


class Schedule(RelationBase):
    """Learning rates follow a curve of a given shape.

    What it says:
        Of all learning rates of a program: they never change; they change by the same amount or
        factor each time; they follow a cosine; they never rise, or not after they have fallen; they
        change with every step; or schedulers are stepped when an epoch of the training data ends,
        and only then.

    Example:
        ``In train.py, learning rates follow a cosine.`` It breaks when a scheduler is stepped
        twice for a batch, is never stepped, or begins anew on resume.

    Evidence:
        One example for each change of the rate of a group of parameters (each step, where nothing
        may change or may rise). Steps that a gradient scaler skipped say nothing. A rate that
        stays what it is counts as still only if it moves later, or never moved.

    Chance:
        A coin for each example.

    Not said:
        How large a rate is, where a curve ends, how long it takes. Curves of schedulers that may
        do anything (a LambdaLR) but for a rise after a fall, and of runs with a scheduler of
        another class. Anything about other programs.
    """

    name = "schedule"

    def proposer(self) -> ScheduleProposer:
        return ScheduleProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ScheduleDecider:
        return ScheduleDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark", "optimizer", "step"})
        if claim.params["shape"] == BY_EPOCH:
            return Needs(calls=FOLLOWED, kinds=kinds | {"batch"})
        return Needs(calls=frozenset({Families.SCHEDULER_STEP}), kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, TEXTS[claim.params["shape"]])

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """A program without a scheduler may well change its rates later on."""
        severity = "info" if claim.params["shape"] == CONSTANT else "warning"
        return CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=severity, title=text
        )


class ScheduleDecider:
    """Decides at the end of each step."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._rates = Rates()
        self._claims = [claim.params for claim in claims]
        for params in self._claims:
            if params["shape"] not in SHAPES:
                raise ValueError(f"nothing is known of {dict(params)}")
        self._turns = Turns()
        self._still: dict[Rate, Look] = {}  # the first look at which it had not moved
        self._moving: set[Rate] = set()

    def observe(self, event: Event) -> Examples:
        self._program.observe(event)
        found: list[tuple[int, Example]] = []
        turn = self._turns.observe(event)
        if turn is not None:
            found += self._of_turn(turn)
        for look in self._rates.observe(event):
            still = self._stillness(look)
            if look.rate.changes >= _MOVING:
                self._moving.add(look.rate)
            for index, params in enumerate(self._claims):
                if self._program.fits(params):
                    is_bound = still is not None and self._must_move(params, still.rate)
                    example = self._judge(params["shape"], look, still if is_bound else None)
                    if example is not None:
                        found.append((index, example))
        return found

    def finish(self) -> Examples:
        """Nothing: a rate that stays what it is may have reached its end."""
        return ()

    def _of_turn(self, turn: Turn) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            is_asked = params["shape"] == BY_EPOCH and self._program.fits(params)
            if is_asked and is_meant(BY_EPOCH, self._rates.schedulers):
                yield index, _HELD if turn.is_regular else out_of_turn(turn)

    def _stillness(self, look: Look) -> Look | None:
        """The look at which the rate should have moved and did not, once that is certain."""
        rate = look.rate
        if look.is_new or is_skipped(look.event):
            return None
        if look.was is None:
            first = self._still.setdefault(rate, look)
            is_certain = rate.changes == 0 and rate.steps == _PATIENCE
            return first if is_certain else None
        first_still = self._still.pop(rate, None)
        return first_still if rate.changes > 1 else None

    def _must_move(self, params: Mapping[str, Any], rate: Rate) -> bool:
        """Whether a rate that stays is at fault.

        Which schedule there is, or none, is a setting. Of those that may do anything it is known
        that they move when another rate does.
        """
        classes = self._rates.schedulers.keys()
        if params.get("schedulers", [*classes]) != sorted(classes):
            return False
        is_known = bool(classes) and classes <= KNOWN
        return is_known or (rate.changes == 0 and bool(self._moving - {rate}))

    def _judge(self, shape: str, look: Look, still: Look | None) -> Example | None:
        if look.is_new or shape == BY_EPOCH or not is_meant(shape, self._rates.schedulers):
            return None
        if shape == MOVES:
            if still is not None:
                return self._negative(shape, still)
            return None if look.was is None else _HELD
        if look.was is None:
            return _HELD if shape in (CONSTANT, FALLS) else None
        rose = look.value > look.was
        if shape == CONSTANT:
            holds: bool | None = False
        elif shape == FALLS:
            holds = not rose
        elif shape == WARM_UP:
            holds = not rose if look.rate.has_fallen else None
        else:
            holds = fits(shape, look.rate.last)
        if holds is None:
            return None
        return _HELD if holds else self._negative(shape, look)

    def _negative(self, shape: str, look: Look) -> Example:
        event: StepEvent = look.event
        calls = [call for _, call in sorted(self._rates.schedulers.items())]
        seen = "stays at" if look.was is None else f"goes from {look.was:.6g} to"
        return Example(
            holds=False,
            context=_ALWAYS,
            step=event.step,
            rank=event.rank,
            subject=Subject(api=calls[-1].api if calls else Families.SCHEDULER_STEP),
            expected=TEXTS[shape],
            observed=f"the rate of {look.rate.group} {seen} {look.value:.6g}",
            evidence=(*calls[-1:], event),
            symptom=Symptom.SCHEDULE,
        )
