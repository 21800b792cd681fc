"""Copies of weights: who follows whom, what loads change, and models beside the trained one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.reader import FactReader
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.facts import Fact
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import AverageDecay, FollowedValue, LoadFollowed
from traincheck.schema.observations.models import (
    AuxiliaryCall,
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    ModelStructure,
)
from traincheck.schema.observations.reading import observed

_FEW = 2  # looks: one shows no change
_NOTHING = 0.01  # of the earlier values, kept by a copy
_SHORT = 0.6  # kept in an update: the mean of the last two or so
_LONG = 0.9
_BENT = 0.2  # part of a move that is no step towards the trained model
_FAR = 4.0  # times the second update

LOADS = Kind(
    "copies.loads",
    {
        "none": "no state is loaded into a model or an optimizer",
        "changes": "{of} is changed by each load into it, {looks} in all",
        "some change nothing": "{of} is not changed by {number} of {looks:load} into it",
        "change nothing": "{of} is changed by no load into it, {looks} in all",
        "its own state": "{of} is loaded with its own tensors, which changes nothing, in {number} "
        "of {looks:load}",
        "not known": "a state is loaded into {of}",
    },
    unsaid="A load that changes nothing is usual where weights are equal already.",
)
FIRST = Kind(
    "copies.first update after a load",
    {
        "none": "no load into a model that is trained afterwards",
        "like the next": "the first update after a load of {of} is like the next one",
        "far": "the first update after a load of {of} moves it by {moved}, the next one by {later}",
        "back": "the first update after a load of {of} moves it by {moved} to a distance of {back} "
        "from its values before the load, which had moved it by {jump}; the next moves it by "
        "{later}",
    },
)
AVERAGE = Kind(
    "copies.average",
    {
        "none": "no model moves towards a trained model of the same structure",
        "copied": "{of} is set to the values of {trained}",
        "short": "{of} keeps {decay} of its values at an update, so it is a mean of about "
        "{updates} updates of {trained}",
        "medium": "{of} keeps {decay} of its values at an update, so it is a mean of about "
        "{updates} updates of {trained}",
        "long": "{of} keeps {decay} of its values at an update, so it is a mean of about "
        "{updates} updates of {trained}",
        "another way": "{of} moves, and {residual} of its move does not lead to {trained}",
    },
    unsaid="A decay may rise with the number of updates; it is that of the last look.",
)
OTHERS = Kind(
    "copies.other models",
    {
        "none": "no model that is called without grad is left out by the optimizers",
        "written": "{of}, which no optimizer holds, is written to between its uses",
        "never written": "{of}, which no optimizer holds, is not written to from the first to the "
        "last of {looks} steps with calls; no trained model has its structure",
        "never written, like the trained": "{of}, which no optimizer holds, is not written to from "
        "the first to the last of {looks} steps with calls; {trained} of the same structure is "
        "trained",
        "seen once": "{of}, which no optimizer holds, is called in one step",
    },
    unsaid="A teacher, or a reference that is kept on purpose, is not written to.",
)
NORMS = Kind(
    "copies.norm statistics",
    {
        "none": "no model that no optimizer holds is evaluated",
        "no initial ones": "{of}, which no optimizer holds, is evaluated without initial "
        "statistics of a batch norm",
        "initial": "{of}, which no optimizer holds, is evaluated with the initial statistics of "
        "its batch norms: no batch and no copy has changed them",
    },
)


@dataclass(slots=True)
class _Loads:
    """The loads of one line into one target."""

    looks: int = 0
    idle: int = 0
    own: int = 0
    unknown: int = 0


class Loads(FactReader):
    """Follows loads of the state of models and optimizers, and the updates after them."""

    kinds: ClassVar = (LOADS, FIRST)
    needs: ClassVar = Needs(kinds=frozenset({"checkpoint"})) | needs_of(LoadFollowed)
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str], _Loads] = {}
        self._followed: dict[tuple[str, str], LoadFollowed] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, CheckpointEvent) and event.op == "load_state_dict":
            if event.entries == 0 or event.target is None:
                return
            of = event.owner or event.target
            loads = self._by_place.setdefault((of, event.where or ""), _Loads())
            loads.looks += 1
            loads.unknown += event.changed is None
            loads.idle += event.changed == 0
            loads.own += event.changed == 0 and event.shared > 0
        elif (found := observed(event, LoadFollowed)) is not None and found.values:
            self._followed[found.model, found.where or ""] = found

    def facts(self) -> Iterator[Fact]:
        if not self._by_place:
            yield Fact(kind=LOADS.name, seen_as="none")
        for (of, where), loads in self._by_place.items():
            seen_as = (
                "its own state"
                if loads.own
                else "changes"
                if not loads.idle and not loads.unknown
                else "not known"
                if not loads.idle
                else "change nothing"
                if loads.idle == loads.looks
                else "some change nothing"
            )
            values = {"number": loads.own or loads.idle, "looks": loads.looks}
            yield Fact(kind=LOADS.name, of=of, seen_as=seen_as, values=values, where=where)
        if not self._followed:
            yield Fact(kind=FIRST.name, seen_as="none")
        for (model, where), found in self._followed.items():
            norms = {
                name: math.hypot(*(getattr(value, name) for value in found.values.values()))
                for name in FollowedValue.__slots__
            }
            is_far = norms["moved"] > _FAR * norms["later"]
            seen_as = (
                "like the next"
                if not is_far
                else "back"
                if norms["back"] < norms["jump"] / 2
                else "far"
            )
            yield Fact(kind=FIRST.name, of=model, seen_as=seen_as, values=norms, where=where)


@dataclass(slots=True)
class _Other:
    """A model that no optimizer holds.

    Attributes:
        weights: in how many steps each state of its weights was seen.
        is_initial: whether it was evaluated with initial statistics; None if it was not evaluated.
    """

    weights: Counter[str] = field(default_factory=Counter)
    last_step: int | None = None
    is_initial: bool | None = None


class OtherModels(FactReader):
    """Follows models that no optimizer holds: whether they change, and towards whom."""

    kinds: ClassVar = (AVERAGE, OTHERS, NORMS)
    needs: ClassVar = needs_of(
        AverageDecay, AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms, ModelStructure
    ) | Needs(kinds=frozenset({"optimizer"}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._averages: dict[tuple[str, str], list[AverageDecay]] = {}
        self._others: dict[str, _Other] = {}
        self._structures: dict[str, tuple[tuple[str, object], ...]] = {}
        self._trained: set[str] = set()

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            names = (name for group in event.groups for name in group.params)
            self._trained.update(name.partition(".")[0] for name in names)
            return
        moved = observed(event, AverageDecay)
        if moved is not None:
            self._averages.setdefault((moved.model, moved.of), []).append(moved)
            return
        used = observed(event, AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms)
        if used is not None:
            self._enter(used, event)
        elif (model := observed(event, ModelStructure)) is not None:
            parts = model.modules.items()
            self._structures[model.name] = tuple(
                (path.partition(".")[2], part.get("class")) for path, part in parts
            )

    def _enter(self, used: AuxiliaryCall, event: Event) -> None:
        other = self._others.setdefault(used.model, _Other())
        if event.step != other.last_step:
            other.weights[used.weights] += 1
            other.last_step = event.step
        if isinstance(used, AuxiliaryEval):
            is_initial = isinstance(used, AuxiliaryInitialNorms)
            other.is_initial = bool(other.is_initial) or is_initial

    def facts(self) -> Iterator[Fact]:
        if not self._averages:
            yield Fact(kind=AVERAGE.name, seen_as="none")
        for (model, of), moves in self._averages.items():
            yield _average(model, of, moves)
        if not self._others:
            yield Fact(kind=OTHERS.name, seen_as="none")
        if all(other.is_initial is None for other in self._others.values()):
            yield Fact(kind=NORMS.name, seen_as="none")
        for name, other in self._others.items():
            looks = other.weights.total()
            trained = self._like(name)
            seen_as = (
                "seen once"
                if looks < _FEW
                else "written"
                if len(other.weights) > 1
                else "never written, like the trained"
                if trained
                else "never written"
            )
            values = {"looks": looks, "trained": trained}
            yield Fact(kind=OTHERS.name, of=name, seen_as=seen_as, values=values)
            if other.is_initial is not None:
                seen_as = "initial" if other.is_initial else "no initial ones"
                yield Fact(kind=NORMS.name, of=name, seen_as=seen_as)

    def _like(self, name: str) -> str:
        """A trained model of the same structure; empty if there is none."""
        mine = self._structures.get(name)
        found = (one for one in sorted(self._trained) if self._structures.get(one) == mine)
        return next(found, "") if mine else ""


def _average(model: str, of: str, moves: list[AverageDecay]) -> Fact:
    last = moves[-1]
    decay = min(max(last.decay, 0.0), 1.0)
    seen_as = (
        "another way"
        if last.residual > _BENT
        else "copied"
        if decay < _NOTHING
        else "short"
        if decay < _SHORT
        else "medium"
        if decay < _LONG
        else "long"
    )
    updates = round(1 / (1 - decay)) if decay < 1 else "very many"
    values = {"trained": of, "decay": decay, "updates": updates, "residual": last.residual}
    return Fact(kind=AVERAGE.name, of=model, seen_as=seen_as, values=values)


READERS = (Loads, OtherModels)
