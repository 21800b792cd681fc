"""The mode in which models are evaluated, and the state that is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.evaluations import EVALUATIONS, KeptStates
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families

_FEW = 2  # evaluations: of one there is no best

MODE = Kind(
    "evaluation.mode",
    {
        "no evaluation": "no model is called without grad",
        "evaluation mode": "{of} is called without grad in evaluation mode",
        "training mode": "{of} is called without grad in training mode",
        "both modes": "{of} is called without grad in both modes, {number} of {all} times in "
        "training mode",
    },
    unsaid="Whether a layer of it behaves differently in the two modes.",
)
BEST = Kind(
    "evaluation.state that is kept",
    {
        "none": "of no evaluated state it is known that it is kept as the best one",
        "lowest loss": "the state with the lowest of {number} evaluation losses is kept, {loss}",
        "highest loss": "the state with the highest of {number} evaluation losses is kept, {loss}; "
        "the lowest is {best}",
        "another": "a state that has neither the lowest nor the highest of {number} evaluation "
        "losses is kept, {loss}; the lowest is {best}",
    },
    unsaid="The state may be chosen by another number than the loss.",
)


class Modes(FactReader):
    """Follows calls of outermost modules without grad."""

    kinds: ClassVar = (MODE,)
    needs: ClassVar = Needs(calls=frozenset({Families.MODULE}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._calls: dict[str, Counter[bool]] = {}

    def observe(self, event: Event) -> None:
        if (
            isinstance(event, CallEvent)
            and event.root
            and not event.grad_enabled
            and event.module
            and event.training is not None
        ):
            self._calls.setdefault(event.module, Counter())[event.training] += 1

    def facts(self) -> Iterator[Fact]:
        if not self._calls:
            yield Fact(kind=MODE.name, seen_as="no evaluation")
        for module, calls in self._calls.items():
            number, whole = calls[True], calls.total()
            seen_as = (
                "evaluation mode"
                if not number
                else "training mode"
                if number == whole
                else "both modes"
            )
            values = {"number": number, "all": whole}
            yield Fact(kind=MODE.name, of=module, seen_as=seen_as, values=values)


class Kept(FactReader):
    """Tells which of the evaluated states is kept."""

    kinds: ClassVar = (BEST,)
    needs: ClassVar = EVALUATIONS
    observes: ClassVar = Needs()
    uses: ClassVar = (KeptStates,)

    def bind(self, run_states: RunStates) -> None:
        self._states = run_states.of(KeptStates)

    def observe(self, event: Event) -> None:
        """Nothing: the states follow what is needed."""

    def facts(self) -> Iterator[Fact]:
        losses = [one.loss for one in self._states.evaluations.all if one.loss is not None]
        kept = self._states.kept()
        if not kept or len(losses) < _FEW:
            yield Fact(kind=BEST.name, seen_as="none")
            return
        for event, evaluation in kept:
            loss = evaluation.loss
            if loss is None:
                continue
            seen_as = (
                "lowest loss"
                if loss <= min(losses)
                else "highest loss"
                if loss >= max(losses)
                else "another"
            )
            values = {"number": len(losses), "loss": loss, "best": min(losses)}
            yield Fact(kind=BEST.name, seen_as=seen_as, values=values, where=event.where or "")


READERS = (Modes, Kept)
