"""Whether there is anything to learn from: the loss, its gradients, and what they move."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from traincheck.facts.kinds import SHOWN, Kind
from traincheck.facts.reader import FactReader
from traincheck.readings import recorded
from traincheck.readings.provider import RunStates
from traincheck.readings.step_facts import StepFacts
from traincheck.readings.training_state import TrainingState
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_FEW = 3  # updates: what did not happen in fewer may still come
_MOSTLY = 0.5

LOSS = Kind(
    "signal.loss",
    {
        "changes": "the loss of `{of}` is {first} at the start and {last} at the end",
        "constant": "the loss of `{of}` is {last} in each backward pass",
        "often zero": "the loss of `{of}` is exactly 0",
        "zero": "the loss of `{of}` is exactly 0",
        "not finite": "the loss of `{of}` is NaN or infinite",
        "not known": "the loss of `{of}` is no single number, or was not recorded",
    },
    look="backward pass",
    unsaid="A loss may be 0 by design, as of an algorithm whose gradient does not come from it.",
)
STILL = Kind(
    "signal.parameters that never change",
    {
        "none": "{all} parameters of {of} change",
        "some": "{number} of {all} parameters of {of} change in no recorded step: {names}",
        "all": "none of the {all} parameters of {of} changes in a recorded step",
    },
    unsaid="Parameters may be frozen by the program, which is not looked at here.",
)
UNREACHED = Kind(
    "signal.parameters without a gradient",
    {
        "none": "each of the {all} parameters of {of} gets a gradient",
        "some": "{number} of {all} parameters of {of} have no gradient in a recorded update: "
        "{names}",
        "all": "none of the {all} parameters of {of} has a gradient in a recorded update",
    },
)
ZERO = Kind(
    "signal.gradients of zero",
    {
        "none": "no parameter of {of} has a gradient of exactly 0 in most updates",
        "some often": "{number} of {all} parameters of {of} have a gradient of exactly 0 in most "
        "updates: {names}",
        "some always": "{number} of {all} parameters of {of} have a gradient of exactly 0 in each "
        "update: {names}",
        "all": "all gradients of {of} are exactly 0 in each of {updates:update}",
    },
)


@dataclass(slots=True)
class _Loss:
    """The values of the root of backward passes of one line."""

    looks: int = 0
    zero: int = 0
    broken: int = 0
    first: float | None = None
    last: float | None = None
    differs: bool = False
    first_zero: int | None = None
    first_broken: int | None = None

    def enter(self, number: float | None, step: int | None) -> None:
        self.looks += 1
        if number is None:
            return
        if not math.isfinite(number):
            self.broken += 1
            self.first_broken = step if self.first_broken is None else self.first_broken
            return
        if number == 0:
            self.zero += 1
            self.first_zero = step if self.first_zero is None else self.first_zero
        self.differs |= self.last is not None and number != self.last
        self.first = number if self.first is None else self.first
        self.last = number

    def seen_as(self) -> tuple[str, int, int | None]:
        """The class, in how many passes, and the first step."""
        if self.broken:
            return "not finite", self.broken, self.first_broken
        if self.last is None:
            return "not known", self.looks, None
        if self.zero > _MOSTLY * self.looks:
            return "zero" if self.zero == self.looks else "often zero", self.zero, self.first_zero
        is_constant = not self.differs and self.looks >= _FEW
        return "constant" if is_constant else "changes", self.looks, None


class Losses(FactReader):
    """Follows the roots of backward passes."""

    kinds: ClassVar = (LOSS,)
    needs: ClassVar = Needs(calls=frozenset({Families.BACKWARD}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._by_place: dict[str, _Loss] = {}

    def observe(self, event: Event) -> None:
        if not isinstance(event, CallEvent) or event.exception is not None:
            return
        roots = event.args.get("tensors")
        root = roots[0] if isinstance(roots, list) and len(roots) == 1 else roots
        value = recorded.value_of(root)
        self._by_place.setdefault(event.where or "", _Loss()).enter(value, event.step)

    def facts(self) -> Iterator[Fact]:
        for where, loss in self._by_place.items():
            seen_as, count, first_step = loss.seen_as()
            yield Fact(
                kind=LOSS.name,
                of="backward",
                seen_as=seen_as,
                values={"first": loss.first, "last": loss.last},
                where=where,
                count=count,
                looks=loss.looks,
                first_step=first_step,
            )


class Parameters(FactReader):
    """Follows the parameters of each optimizer, and their gradients when it steps."""

    kinds: ClassVar = (STILL, UNREACHED, ZERO)
    needs: ClassVar = Needs(
        calls=frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"step", "optimizer"}),
        states=frozenset({"parameter@step", "gradient@backward"}),
    )
    observes: ClassVar = Needs(kinds=frozenset({"step"}))
    uses: ClassVar = (TrainingState,)

    def __init__(self) -> None:
        self._updates: Counter[str] = Counter()
        self._without: dict[str, Counter[int]] = {}  # optimizer -> no gradient at its update
        self._zero: dict[str, Counter[int]] = {}
        self._moved: set[int] = set()

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(TrainingState)

    def observe(self, event: Event) -> None:
        ended = self._state.ended
        if not isinstance(event, StepEvent) or ended is None or not ended.is_complete:
            return
        self._moved |= ended.changed
        self._updated(ended)

    def _updated(self, ended: StepFacts) -> None:
        for moment in ended.updates():
            owner = moment.call.owner
            holder = self._state.holders.get(owner or "")
            if owner is None or holder is None:
                continue
            self._updates[owner] += 1
            self._without.setdefault(owner, Counter()).update(holder.ids - moment.present)
            self._zero.setdefault(owner, Counter()).update(moment.present - moment.applied)

    def facts(self) -> Iterator[Fact]:
        for owner, updates in self._updates.items():
            holder = self._state.holders.get(owner)
            if holder is None or updates < _FEW:
                continue
            trained = [i for i in holder.ids if self._is_trained(i)]
            zero = self._zero[owner]
            always = [i for i in trained if zero[i] == updates]
            often = [i for i in trained if zero[i] > _MOSTLY * updates]
            bare = [i for i in trained if self._without[owner][i] == updates]
            where = holder.made.where or ""
            classes = (
                (STILL, [i for i in trained if i not in self._moved], "some"),
                (UNREACHED, bare, "some"),
                (ZERO, always or often, "some always" if always else "some often"),
            )
            for kind, found, some in classes:
                whole = len(found) == len(trained) and (kind is not ZERO or bool(always))
                yield Fact(
                    kind=kind.name,
                    of=holder.label,
                    seen_as="none" if not found else "all" if whole else some,
                    values={
                        "number": len(found),
                        "all": len(trained),
                        "updates": updates,
                        "names": joined(sorted(self._state.name(i) for i in found), SHOWN),
                    },
                    where=where,
                )

    def _is_trained(self, identity: int) -> bool:
        known = self._state.parameters.get(identity) or self._state.loose.get(identity)
        return known is not None and known.requires_grad


READERS = (Losses, Parameters)
