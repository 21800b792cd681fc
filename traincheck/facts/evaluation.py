"""The mode in which models are evaluated, what that changes, and the state that is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import SHOWN, Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.evaluations import EVALUATIONS, KeptStates
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.facts import Fact
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.data import MetricUse
from traincheck.schema.observations.models import EvalEffects
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

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
BUFFERS = Kind(
    "evaluation.buffers",
    {
        "none": "no trained model with buffers is evaluated twice in a row in evaluation mode",
        "not written": "no buffer of {of} is written to between two calls of an evaluation",
        "written": "{number} of {all:buffer} of {of} are written to between two calls of an "
        "evaluation: {names}",
    },
    look="evaluation",
    unsaid="A cache, or a count of calls, is written to by design.",
)
DRAWS = Kind(
    "evaluation.random numbers",
    {
        "none": "no trained model is evaluated twice in a row in evaluation mode",
        "not drawn": "no random number is drawn between two calls of {of} in an evaluation",
        "drawn": "random numbers of {names} are drawn between two calls of {of} in an evaluation",
    },
    look="evaluation",
    unsaid="Inputs that the program makes at random, and sampled texts, draw by design.",
)
METRICS = Kind(
    "evaluation.metrics",
    {
        "none": "no metric of torchmetrics is computed",
        "one phase": "{of} is computed from {number:update} of one phase",
        "both phases": "{of} is computed from {training:update} in training and "
        "{evaluation:update} in evaluation together",
        "several evaluations": "{of} is computed from {number:update}, and was computed "
        "{computed:time} before without a reset",
    },
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


@dataclass(slots=True)
class _Effects:
    """The observed evaluations of one model, and those with an effect."""

    looks: int = 0
    written: int = 0
    drawn: int = 0
    buffers: int = 0
    number: int = 0
    names: Counter[str] = field(default_factory=Counter)
    generators: Counter[str] = field(default_factory=Counter)


class Effects(FactReader):
    """Follows what is written and drawn in evaluations."""

    kinds: ClassVar = (BUFFERS, DRAWS)
    needs: ClassVar = needs_of(EvalEffects)
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._models: dict[str, _Effects] = {}

    def observe(self, event: Event) -> None:
        found = observed(event, EvalEffects)
        if found is None:
            return
        effects = self._models.setdefault(found.model, _Effects())
        effects.looks += 1
        effects.written += bool(found.written)
        effects.drawn += bool(found.drawn)
        effects.buffers = found.buffers
        effects.number = max(effects.number, found.written)
        effects.names.update(found.names)
        effects.generators.update(found.drawn)

    def facts(self) -> Iterator[Fact]:
        if not any(effects.buffers for effects in self._models.values()):
            yield Fact(kind=BUFFERS.name, seen_as="none")
        if not self._models:
            yield Fact(kind=DRAWS.name, seen_as="none")
        for of, effects in self._models.items():
            looks = effects.looks
            if effects.buffers:
                yield Fact(
                    kind=BUFFERS.name,
                    of=of,
                    seen_as="written" if effects.written else "not written",
                    values={
                        "number": effects.number, "all": effects.buffers,
                        "names": joined(sorted(effects.names), SHOWN),
                    },
                    count=effects.written or looks,
                    looks=looks,
                )  # fmt: skip
            yield Fact(
                kind=DRAWS.name,
                of=of,
                seen_as="drawn" if effects.drawn else "not drawn",
                values={"names": joined(sorted(effects.generators), SHOWN)},
                count=effects.drawn or looks,
                looks=looks,
            )


class Metrics(FactReader):
    """Follows metrics of torchmetrics: the samples of which phases they are computed from."""

    kinds: ClassVar = (METRICS,)
    needs: ClassVar = needs_of(MetricUse)
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Fact] = {}

    def observe(self, event: Event) -> None:
        use = observed(event, MetricUse)
        if use is None:
            return
        seen_as = (
            "both phases"
            if use.training and use.evaluation
            else "several evaluations"
            if use.computed
            else "one phase"
        )
        values = {
            "number": use.training + use.evaluation, "training": use.training,
            "evaluation": use.evaluation, "computed": use.computed,
        }  # fmt: skip
        of, where = use.cls.rpartition(".")[2], use.where or ""
        fact = Fact(kind=METRICS.name, of=of, seen_as=seen_as, values=values, where=where)
        self._found.setdefault((use.metric, seen_as), fact)

    def facts(self) -> Iterator[Fact]:
        if not self._found:
            yield Fact(kind=METRICS.name, seen_as="none")
        for (metric, seen_as), fact in self._found.items():
            others = {one for name, one in self._found if name == metric}
            if seen_as != "one phase" or len(others) == 1:
                yield fact


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


READERS = (Modes, Effects, Metrics, Kept)
