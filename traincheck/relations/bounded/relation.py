"""The relation *bounded*: numbers that stay within limits in every step of a program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.bounded.limits import Samples, holds, word
from traincheck.relations.bounded.messages import (
    FIXES,
    HEADLINES,
    SYMPTOMS,
    TOPICS,
    cause_of,
    limits_text,
    observed_text,
    what,
)
from traincheck.relations.bounded.needs import needs_of
from traincheck.relations.example_cache import Examples
from traincheck.relations.iterations import ShortUpdates
from traincheck.relations.phrasing import in_program
from traincheck.relations.readings.reading import (
    DEAD,
    END_TOKEN,
    FLAT,
    GENERATED,
    LEAST_SHARE,
    LOSS_SCALE,
    NON_FINITE,
    PADDING,
    QUANTITIES,
    SATURATED,
    SCALED_LOSS,
    Key,
    Reading,
)
from traincheck.relations.readings.table import Readings
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import Event, StateEvent, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.torch_api import Families

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)
_COUNTED = 1.4  # times as much, from which on another number of terms was added up
_PATIENCE = {
    LEAST_SHARE: 5,
    FLAT: 5,
    DEAD: 4,
    SATURATED: 4,
    END_TOKEN: 3,
    PADDING: 3,
}  # readings in a row that are wrong


class Bounded(RelationBase):
    """A number stays within limits.

    What it says:
        One of: what backward is given over one update is so many times the mean loss, or the sum of
        its terms is not divided, however many they are; logits reach below zero; what a loss is
        given never does, or never exceeds zero, or one; the norm that clipping finds is above zero;
        losses, gradients and batches are finite; a model is called so many times, at most, to go on
        with a sequence; the norm of the gradients is not far above what it was, and above zero
        unless the loss is zero; no weight has next to none of it; the first ten updates move no
        weight by much more than the learning rate, where the first of all moves some by just that;
        most units of an activation are neither off for a whole batch nor at their limits;
        cross_entropy has two classes or more; its target is so many tokens ahead of what the model
        is given, and leaves out some labels, as padding; labels with padding hold the end token;
        the mask of a batch, and of attention, leaves out the padding; weights of attention leave
        out later positions.

    Example:
        ``In train.py, the losses that backward is given over an update add up to 1 times the mean
        loss.`` It breaks when the loss is not divided by the number of micro-batches.

    Evidence:
        One example for each reading; two for a share of units, which speaks of many. Limits are no
        closer than the program means them: a sign, an exact multiple, a number of tokens that most
        series end with; else 1.25 times as wide as what was seen, thirty times for the norm of
        gradients, which takes 12 readings, a thousand for the share of a weight. Gradients that
        vanish count from the fifth time in a row, units that are off from the fourth; an update
        with less of a loss (the last of an epoch) only when one of another iteration follows.

    Chance:
        A coin for each example.

    Not said:
        How large a loss is. Anything about other programs; losses that are sums of several
        functions, scaled for half precision, or searched with (LBFGS); logits that are all one
        number; labels of batches without padding, where padding is what is left out.
    """

    name = "bounded"

    def proposer(self) -> BoundedProposer:
        return BoundedProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> BoundedDecider:
        return BoundedDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        return needs_of(claim.params)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, f"{what(claim.params)} {limits_text(claim.params)}")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Narrower limits of the same numbers imply wider ones."""
        mine, its = dict(claim.params), dict(other.params)
        is_above = mine.pop("low", -math.inf) >= its.pop("low", -math.inf)
        is_below = mine.pop("high", math.inf) <= its.pop("high", math.inf)
        return claim.relation == other.relation and mine == its and is_above and is_below

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run without a reading has nothing to say."""
        params = claim.params
        key = Key(params["quantity"], params.get("api", ""), params.get("name", ""))
        return {"program": params["program"], "api": word(key)}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id,
            kind="invariant",
            code=self.name,
            severity="warning",
            title=text,
            headline=HEADLINES.get(claim.params["quantity"], ""),
            likely_cause=cause_of(claim.params),
            fix=FIXES.get(claim.params["quantity"], ""),
        )


class BoundedProposer(ProposerBase):
    """Proposes limits for each key that was read often enough."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._readings = Readings()
        self._samples = Samples()

    def observe(self, event: Event) -> None:
        self._program.observe(event)
        for reading in self._readings.observe(event):
            self._samples.add(reading)

    def hypotheses(self) -> Iterator[Hypothesis]:
        return self._samples.claims(self._program.name)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """What this run bears out, if it is too short to say it itself."""
        return self._samples.claims(self._program.name, is_echo=True)

    def observed_terms(self) -> Iterator[str]:
        """Of what there were readings."""
        return self._samples.observed_terms()


class BoundedDecider:
    """Decides each reading when it is made."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        self._readings = Readings()
        self._by_key: dict[Key, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, claim in enumerate(claims):
            params = claim.params
            has_limit = not {"low", "high"}.isdisjoint(params)
            if params["quantity"] not in QUANTITIES or not has_limit:
                raise ValueError(f"nothing is known of {dict(params)}")
            key = Key(params["quantity"], params.get("api", ""), params.get("name", ""))
            self._by_key[key].append((index, params))
        self._waiting: dict[int, list[Example]] = defaultdict(list)
        self._short = ShortUpdates()

    def observe(self, event: Event) -> Examples:
        self._program.observe(event)
        self._short.observe(event)
        if isinstance(event, StepEvent) and not event.recorded:
            self._waiting.clear()
        found: list[tuple[int, Example]] = []
        for reading in self._readings.observe(event):
            for index, params in self._by_key.get(reading.key, ()):
                if self._program.fits(params):
                    found += self._judge(index, params, reading)
        return found

    def finish(self) -> Examples:
        """Nothing: a short update at the end of a run is none the worse."""
        return ()

    def _judge(self, index: int, params: Mapping[str, Any], reading: Reading) -> Examples:
        if reading.key.quantity == LOSS_SCALE:
            return self._scale(index, params, reading)
        if holds(params, reading.value):
            self._waiting.pop(index, None)
            return ((index, _HELD),) * (1 + (reading.key.quantity in (DEAD, SATURATED)))
        patience = _PATIENCE.get(reading.key.quantity, 1)
        waiting = self._waiting[index]
        waiting.append(_negative(params, reading))
        return ((index, waiting.pop(0)),) if len(waiting) >= patience else ()

    def _scale(self, index: int, params: Mapping[str, Any], reading: Reading) -> Examples:
        """What backward is given may be less in the last update of an epoch."""
        low, high = params["low"], params["high"]
        is_told = reading.is_plain or low == high
        if not (is_told and reading.sums <= set(params.get("sums", ()))):
            return ()
        is_held = holds(params, reading.value)
        # A term that was added; a batch more or less makes twice or half of it
        is_near = low == high and low / _COUNTED < reading.value < low * _COUNTED
        if reading.value < low and not is_held and not is_near:
            return self._short.short(index, _negative(params, reading))
        self._short.full(index)
        if is_held:
            return ((index, _HELD),)
        return () if is_near else ((index, _negative(params, reading)),)


def _negative(params: Mapping[str, Any], reading: Reading) -> Example:
    event, key = reading.event, reading.key
    subject = Subject(api=key.api or Families.BACKWARD)
    if isinstance(event, StateEvent):
        subject = Subject(variable=event.name)
    elif key.quantity in (GENERATED, DEAD, SATURATED):
        subject = Subject(api=key.api, module=key.name)
    elif key.quantity in (END_TOKEN, PADDING):
        subject = Subject(variable=key.api)
    elif key.name == SCALED_LOSS:
        subject = Subject(api=Families.SCALE)
    elif key.quantity == NON_FINITE and key.api:
        subject = Subject(variable=key.name)
    return Example(
        holds=False,
        context=_ALWAYS,
        step=event.step,
        rank=event.rank,
        stage=event.stage,
        subject=subject,
        expected=f"{what(params)} {limits_text(params)}",
        observed=observed_text(params, reading.value, reading.backwards),
        evidence=(event,),
        symptom=SYMPTOMS.get(key.quantity, Symptom.WRONG_VALUE),
        topic=TOPICS.get(key.quantity),
    )
