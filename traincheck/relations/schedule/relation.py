"""The relation *schedule*: the shape of the curve that learning rates of a program follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.facts.steps import is_skipped
from traincheck.relations.base import SATISFIED, RelationBase, counterexample
from traincheck.relations.example_cache import Examples
from traincheck.relations.phrasing import in_program
from traincheck.relations.schedule.epochs import (
    FOLLOWED,
    EpochBoundaries,
    EpochBoundary,
    misplaced_step,
)
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
    Rate,
    Rates,
    RateSample,
    fits,
    is_meant,
)
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.torch_api import Families

_PATIENCE = 3  # steps that a rate may keep its first value, before it counts as constant
_MOVING = 2  # changes


class Schedule(RelationBase):
    """Learning rates follow a curve of a given shape.

    Claims:
        All learning rates of a program have one of these properties:
        - they never change;
        - they change by the same amount or factor each time;
        - they follow a cosine;
        - they never rise, or not after they have fallen;
        - they change with every step;
        - schedulers are stepped when an epoch of the training data ends, and only then.

    Example:
        ``In train.py, learning rates follow a cosine.`` It breaks when a scheduler is stepped
        twice for a batch, is never stepped, or starts again on resume.

    Evidence:
        One example for each change of the rate of a parameter group (for each step, if nothing may
        change or rise). Steps that a gradient scaler skipped give none. An unchanged rate counts
        only if it moves later, or never moved.

    Chance:
        A coin for each example.

    Not claimed:
        - How large a rate is, where a curve ends, how long it takes.
        - Curves of schedulers that may do anything (a LambdaLR), except a rise after a fall.
        - Curves of runs with a scheduler of another class.
        - Anything about other programs.
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
        """A program without a scheduler may add one later."""
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
        self._boundaries = EpochBoundaries()
        self._still: dict[Rate, RateSample] = {}  # the first sample that had not moved
        self._moving: set[Rate] = set()

    def observe(self, event: Event) -> Examples:
        self._program.observe(event)
        found: list[tuple[int, Example]] = []
        boundary = self._boundaries.observe(event)
        if boundary is not None:
            found += self._of_boundary(boundary)
        for sample in self._rates.observe(event):
            still = self._stillness(sample)
            if sample.rate.changes >= _MOVING:
                self._moving.add(sample.rate)
            for index, params in enumerate(self._claims):
                if self._program.fits(params):
                    is_bound = still is not None and self._must_move(params, still.rate)
                    example = self._judge(params["shape"], sample, still if is_bound else None)
                    if example is not None:
                        found.append((index, example))
        return found

    def finish(self) -> Examples:
        """Nothing: a constant rate may have reached its end."""
        return ()

    def _of_boundary(self, boundary: EpochBoundary) -> Iterator[tuple[int, Example]]:
        for index, params in enumerate(self._claims):
            is_asked = params["shape"] == BY_EPOCH and self._program.fits(params)
            if is_asked and is_meant(BY_EPOCH, self._rates.schedulers):
                yield index, SATISFIED if boundary.is_regular else misplaced_step(boundary)

    def _stillness(self, sample: RateSample) -> RateSample | None:
        """The sample at which the rate should have moved and did not, once that is certain."""
        rate = sample.rate
        if sample.is_new or is_skipped(sample.event):
            return None
        if sample.was is None:
            first = self._still.setdefault(rate, sample)
            is_certain = rate.changes == 0 and rate.steps == _PATIENCE
            return first if is_certain else None
        first_still = self._still.pop(rate, None)
        return first_still if rate.changes > 1 else None

    def _must_move(self, params: Mapping[str, Any], rate: Rate) -> bool:
        """Whether a constant rate breaks the claim.

        The schedule is a setting. A scheduler that may do anything should still move a rate when
        another rate moves.
        """
        classes = self._rates.schedulers.keys()
        if params.get("schedulers", [*classes]) != sorted(classes):
            return False
        is_known = bool(classes) and classes <= KNOWN
        return is_known or (rate.changes == 0 and bool(self._moving - {rate}))

    def _judge(self, shape: str, sample: RateSample, still: RateSample | None) -> Example | None:
        if sample.is_new or shape == BY_EPOCH or not is_meant(shape, self._rates.schedulers):
            return None
        if shape == MOVES:
            if still is not None:
                return self._negative(shape, still)
            return None if sample.was is None else SATISFIED
        if sample.was is None:
            return SATISFIED if shape in (CONSTANT, FALLS) else None
        rose = sample.value > sample.was
        if shape == CONSTANT:
            holds: bool | None = False
        elif shape == FALLS:
            holds = not rose
        elif shape == WARM_UP:
            holds = not rose if sample.rate.has_fallen else None
        else:
            holds = fits(shape, sample.rate.last)
        if holds is None:
            return None
        return SATISFIED if holds else self._negative(shape, sample)

    def _negative(self, shape: str, sample: RateSample) -> Example:
        event: StepEvent = sample.event
        calls = [call for _, call in sorted(self._rates.schedulers.items())]
        seen = "stays at" if sample.was is None else f"goes from {sample.was:.6g} to"
        return counterexample(
            event,
            Subject(api=calls[-1].api if calls else Families.SCHEDULER_STEP),
            TEXTS[shape],
            f"the learning rate of {sample.rate.group} {seen} {sample.value:.6g}",
            Symptom.SCHEDULE,
            evidence=(*calls[-1:], event),
        )
