"""The relation *bounded*: numbers that stay within limits in every step of a program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.readings.loss_scales import (
    GRADIENT,
    LOSS,
    OF_TERMS,
    SCALED_LOSS,
    Numbers,
    ScaleReading,
)
from traincheck.readings.losses import (
    LOSSES,
)
from traincheck.readings.reading import (
    Reading,
)
from traincheck.readings.scalars import (
    ScalarReadings,
)
from traincheck.relations.base import (
    SATISFIED,
    ProposerBase,
    asked,
)
from traincheck.relations.bounded.limits import (
    ReadingHistory,
)
from traincheck.relations.bounded.quantities import (
    QUANTITIES,
)
from traincheck.relations.iterations import (
    Examples,
    ShortUpdates,
)
from traincheck.relations.learned import (
    Learned,
    ReadingDecider,
)
from traincheck.schema.claims import (
    Hypothesis,
    Needs,
    sampled,
    within_modules,
)
from traincheck.schema.events import (
    Event,
    StepEvent,
)
from traincheck.schema.findings import (
    Example,
)
from traincheck.schema.torch_api import (
    Families,
)


def needs_of(params: Mapping[str, Any]) -> Needs:
    """Of a claim with these parameters."""
    quantity, api = params["quantity"], params.get("api", "")
    kinds = frozenset({"mark", "step"})
    if quantity == Numbers.LOSS_SCALE:
        calls = frozenset({*LOSSES, Families.BACKWARD, Families.SCALE, Families.OPTIMIZER_STEP})
        # The number of terms must be known where a sum is divided; a mean needs no numbers.
        sums = () if params.get("name") == OF_TERMS else params.get("sums", ())
        return Needs(calls=calls, kinds=kinds | {"batch"}, stats=sampled(*sums))
    if quantity in (Numbers.DEAD, Numbers.SATURATED):
        calls = within_modules(api) | {Families.MODULE}
        return Needs(calls=calls, kinds=kinds, stats=sampled("activation"))
    if quantity in (Numbers.HIDDEN, Numbers.LARGEST, Numbers.LEFT_OUT, Numbers.SMALLEST):
        batches = frozenset({"batch"} if quantity == Numbers.LEFT_OUT else ())
        return Needs(calls=frozenset({api}), kinds=kinds | batches, stats=sampled(api))
    name = params.get("name")
    if quantity == Numbers.NON_FINITE and name in (LOSS, SCALED_LOSS):
        return Needs(calls=frozenset({Families.BACKWARD, Families.SCALE}), kinds=kinds)
    if quantity in (Numbers.END_TOKEN, Numbers.PADDING):
        return Needs(kinds=kinds | {"batch"}, stats=sampled("batch"))
    if quantity in (Numbers.AHEAD, Numbers.MASK):
        calls = frozenset({api, Families.MODULE} if quantity == Numbers.AHEAD else {api})
        return Needs(calls=calls, kinds=kinds | {"batch"}, stats=sampled(api, "batch"))
    if quantity == Numbers.NON_FINITE and name != GRADIENT:
        return Needs(kinds=kinds | {"batch"}, stats=sampled("batch"))
    if quantity == Numbers.MOVED:
        return Needs(
            states=sampled("parameter@step"),
            kinds=kinds | {"checkpoint", "optimizer"},
            stats=sampled("parameter") | {"update"},
        )
    if quantity in (Numbers.GRADIENT_NORM, Numbers.NON_FINITE, Numbers.LEAST_SHARE, Numbers.FLAT):
        return Needs(
            calls=frozenset({Families.SCALE, Families.BACKWARD}),
            states=sampled("gradient@backward", "gradient@zero_grad"),
            kinds=kinds,
            stats=sampled("gradient"),
        )
    return Needs(calls=frozenset({api}), kinds=kinds)


_COUNTED = 1.4  # factor from which on another number of terms was summed


class Bounded(Learned):
    """A number stays within limits.

    Claims:
        - The loss passed to backward() over one update is a fixed multiple of the mean loss, or the
          sum of its terms is not divided.
        - Logits reach below zero. Inputs of a loss never do, or never exceed zero, or one.
        - The norm that clipping finds is above zero.
        - Losses, gradients and batches are finite.
        - A model is called at most n times to continue a sequence.
        - The norm of the gradients is not far above its norm in the reference. It is above zero
          unless the loss is zero. No weight has next to none of it.
        - The first ten updates move no weight by much more than the learning rate, if the first
          update moves some by exactly the learning rate.
        - Most units of an activation are neither dead for a whole batch nor saturated.
        - cross_entropy has two classes or more. Its target is n tokens ahead of the model's input
          and ignores some labels, such as padding. Labels with padding hold the end token.
        - The mask of a batch, and of attention, leaves out the padding. Attention weights leave out
          later positions.

    Example:
        ``In train.py, the losses passed to backward() in one update sum to the mean loss (no
        scaling).`` It breaks when the loss is not divided by the number of micro-batches.

    Evidence:
        One example for each reading; two for a share of units, as it covers many. Limits are no
        closer than the program intends them: a sign, an exact multiple, a number of tokens that
        most series end with. Other limits are 1.25 times as wide as the readings, 30 times for the
        norm of gradients (which takes 12 readings), 1,000 times for the share of a weight.
        Vanishing gradients count from the fifth time in a row, dead units from the fourth. An
        update with less of a loss (the last of an epoch) counts only when an update of another
        iteration follows.

    Chance:
        A coin for each example.

    Not claimed:
        - How large a loss is.
        - Anything about other programs.
        - Losses that are sums of several functions, scaled for half precision, or searched with
          (LBFGS).
        - Logits that are all one number.
        - Labels of batches without padding, if the ignored labels are padding.
    """

    name = term = "bounded"
    rows = QUANTITIES
    named = ("quantity", "api", "name")

    def proposer(self) -> BoundedProposer:
        return BoundedProposer(self)

    def decider(self, claims: Sequence[Hypothesis]) -> BoundedDecider:
        return BoundedDecider(self, claims)

    def needs(self, claim: Hypothesis) -> Needs:
        return needs_of(claim.params)

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Narrower limits of the same numbers imply wider ones."""
        mine, its = dict(claim.params), dict(other.params)
        is_above = mine.pop("low", -math.inf) >= its.pop("low", -math.inf)
        is_below = mine.pop("high", math.inf) <= its.pop("high", math.inf)
        return claim.relation == other.relation and mine == its and is_above and is_below


class BoundedProposer(ProposerBase):
    """Proposes limits for each key that was read often enough."""

    observes = asked(
        "batch", "call", "checkpoint", "mark", "optimizer", "step", "gradient@*", "parameter@*"
    )

    def __init__(self, relation: Bounded) -> None:
        self._relation = relation
        self._readings = ScalarReadings()
        self._history = ReadingHistory()

    def observe(self, event: Event) -> None:
        for reading in self._readings.observe(event):
            self._history.add(reading)

    def hypotheses(self) -> Iterator[Hypothesis]:
        return self._history.claims(self._program.name)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """Claims that this run supports, though it is too short to propose them."""
        return self._history.claims(self._program.name, is_echo=True)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the readings of the run."""
        return map(self._relation.word, self._history.keys())


class BoundedDecider(ReadingDecider):
    """Decides each reading when it is made. A short update at the end of a run is not judged."""

    def __init__(self, relation: Bounded, claims: Sequence[Hypothesis]) -> None:
        super().__init__(relation, claims)
        self._waiting: dict[int, list[Example]] = defaultdict(list)
        self._short = ShortUpdates()

    def observe(self, event: Event) -> Examples:
        self._short.observe(event)
        if isinstance(event, StepEvent) and not event.recorded:
            self._waiting.clear()
        return super().observe(event)

    def _judge(self, index: int, params: Mapping[str, Any], reading: Reading) -> Examples:
        if isinstance(reading, ScaleReading):
            return self._scale(index, params, reading)
        row = QUANTITIES[reading.what]
        if row.allows(params, reading.value):
            self._waiting.pop(index, None)
            return ((index, SATISFIED),) * reading.weight
        waiting = self._waiting[index]
        waiting.append(row.negative(params, reading))
        return ((index, waiting.pop(0)),) if len(waiting) >= row.patience else ()

    def _scale(self, index: int, params: Mapping[str, Any], reading: ScaleReading) -> Examples:
        """The loss passed to backward() may be smaller in the last update of an epoch."""
        low, high = params["low"], params["high"]
        is_told = reading.is_plain or low == high
        if not (is_told and reading.sums <= set(params.get("sums", ()))):
            return ()
        row = QUANTITIES[reading.what]
        is_held = row.allows(params, reading.value)
        # A term that was added: a batch more or less would double or halve it
        is_near = low == high and low / _COUNTED < reading.value < low * _COUNTED
        if reading.value < low and not is_held and not is_near:
            return self._short.add_short(index, row.negative(params, reading))
        self._short.clear_short(index)
        if is_held:
            return ((index, SATISFIED),)
        return () if is_near else ((index, row.negative(params, reading)),)
