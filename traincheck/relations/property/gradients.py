"""Properties of sums of losses, accumulated gradients and updates."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.readings.reading import EventReader, Reader, Reading
from traincheck.readings.rescaled_gradients import RESCALED, RescaledGradients
from traincheck.relations.property.base import Property
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.gradients import Recomputation, ReplacedGradients
from traincheck.schema.observations.losses import LossSums
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_WHOLE, _DROPPED = "whole", "dropped"
_PLAIN, _SCALED = "plain", "scaled"
_REPLACED, _COMPUTED = "replaced", "computed"
_SAME, _OTHER = "same", "other"
_CLOSE = 1e-3  # of a factor to 1


def _sums(event: Event) -> Iterable[Reading]:
    found = observed(event, LossSums)
    if found is None or not found.sums:
        return
    wrong = [each for each in found.sums if each.dropped and each.trained and not each.is_used]
    dropped = sorted({name for each in wrong for name in each.dropped})
    seen = f"backward() does not reach the sum: {joined(dropped)} gets no gradient"
    at = Subject(api=Families.BACKWARD)
    value = _DROPPED if dropped else _WHOLE
    yield Reading("trained_sums", "losses", "", value, event, at, seen)


class _Rescaled(Reader):
    """Whether gradients are scaled while they accumulate."""

    def __init__(self) -> None:
        self._fact = RescaledGradients()

    def observe(self, event: Event) -> Iterable[Reading]:
        self._fact.observe(event)
        if not isinstance(event, StepEvent) or not self._fact.windows:
            return
        found = [one for one in self._fact.ended if abs(one.factor - 1) > _CLOSE]
        at = Subject(api=Families.BACKWARD)
        seen = ""
        if found:
            one = found[0]
            seen = (
                f"after {one.passes} of the backward passes, {joined(list(one.names), 3)} are "
                f"multiplied by {one.factor:.4g}, and the next pass adds to that"
            )
        value = _SCALED if found else _PLAIN
        yield Reading("rescaled_sums", "gradients", "", value, event, at, seen)


class _HandedOver(Reader):
    """Whether gradients are replaced between backward and the update, by optimizer.

    The first step of an optimizer is left out: nothing is known of its gradients before.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._replaced: set[str] = set()
        self._stepped: dict[str, CallEvent] = {}

    def observe(self, event: Event) -> Iterable[Reading]:
        if isinstance(event, CallEvent):
            is_step = (event.family or event.api) == Families.OPTIMIZER_STEP
            if is_step and isinstance(event.owner, str) and event.exception is None:
                self._stepped.setdefault(event.owner, event)
        elif isinstance(event, StepEvent):
            yield from self._end(event)
        elif (found := observed(event, ReplacedGradients)) is not None:
            self._replaced.add(found.owner)

    def _end(self, event: StepEvent) -> Iterable[Reading]:
        if event.recorded and event.complete:
            for owner, call in sorted(self._stepped.items()):
                if owner not in self._known:
                    continue
                value, seen = _COMPUTED, f"no new gradients were handed over before {owner} stepped"
                if owner in self._replaced:
                    value, seen = _REPLACED, f"gradients of {owner} were written after backward()"
                at = Subject(api=Families.OPTIMIZER_STEP, variable=owner)
                yield Reading("handed_over", owner, "", value, call, at, seen)
        self._known |= self._stepped.keys()
        self._stepped.clear()
        self._replaced.clear()


def _recomputed(event: Event) -> Iterable[Reading]:
    found = observed(event, Recomputation)
    if found is None or not found.segments:
        return
    seen = ""
    if found.differing:
        one = found.differing[0]
        how = "" if one.preserves_rng else " without the random states of the first pass"
        seen = (
            f"{len(found.differing)} of {found.segments} segments are recomputed{how}, and "
            f"{one.share:.0%} of the elements of {one.function} differ"
        )
    at = Subject(api="torch.utils.checkpoint.checkpoint")
    value = _OTHER if found.differing else _SAME
    yield Reading("recomputed", "segments", "", value, event, at, seen)


RECOMPUTED = Property(
    name="recomputed",
    needs=needs_of(Recomputation),
    reader=partial(EventReader, _recomputed),
    claims={_SAME: "checkpointed {of} have the same values when they are recomputed"},
    headline="Activation checkpointing now recomputes other values",
    cause="Random states may not be restored, or the model may change between the two passes.",
    fix="Call checkpoint() with preserve_rng_state=True, which is its default.",
)
TRAINED_SUMS = Property(
    name="trained_sums",
    needs=needs_of(LossSums),
    reader=partial(EventReader, _sums),
    claims={_WHOLE: "each term of a sum of {of} is behind the root of backward()"},
    headline="A term of the loss gets no gradient any more",
    cause="The sum may only be logged, and backward() called on one of its terms.",
    fix="Call backward() on the sum.",
    symptom=Symptom.STEP_WITHOUT_GRADIENT,
)
RESCALED_SUMS = Property(
    name="rescaled_sums",
    needs=RESCALED,
    reader=_Rescaled,
    claims={_PLAIN: "{of} that accumulate over several backward passes are not scaled in between"},
    headline="Gradients are now scaled while they accumulate",
    cause="The accumulated gradients may be divided after each backward pass, not once.",
    fix="Divide the loss instead: (loss / n).backward().",
    symptom=Symptom.WRONG_ORDER,
)
HANDED_OVER = Property(
    name="handed_over",
    needs=needs_of(ReplacedGradients)
    | Needs(calls=frozenset({Families.OPTIMIZER_STEP}), kinds=frozenset({"step"})),
    reader=_HandedOver,
    claims={_REPLACED: "the program writes new gradients for {of} before each of its steps"},
    headline="The optimizer steps with old gradients",
    cause="Gradients of another model may be handed over only once.",
    fix="Copy the gradients before each optimizer.step().",
    symptom=Symptom.STEP_WITHOUT_GRADIENT,
)
