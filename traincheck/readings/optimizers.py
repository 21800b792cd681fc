"""Optimizers: their parameters, hyper-parameters in force, and updates by the program itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import LoadedHyperparameters, LoadedSetting
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.values import number
from traincheck.schema.words import is_unowned


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An optimizer and its parameters.

    Attributes:
        event: the last event, with the present groups.
        made: the first event, with the line that created it.
        names: by identity.
        groups: index of the group by identity.
    """

    event: OptimizerEvent
    made: OptimizerEvent
    ids: frozenset[int]
    names: dict[int, str]
    groups: dict[int, int]

    @property
    def label(self) -> str:
        """``opt0 (Adam)``."""
        return f"{self.event.id} ({self.event.cls.rpartition('.')[2]})"

    def is_unowned(self, identity: int) -> bool:
        """Whether no module ever owned this parameter: a tensor that is optimized directly."""
        return is_unowned(self.names[identity])


class Holders:
    """The present optimizers of one process, by id.

    is_of_models: any has had parameters of a module, alive or not.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Holder] = {}
        self.is_of_models = False

    def enter(self, event: OptimizerEvent) -> Holder:
        """Enter the present parameters of an optimizer."""
        names: dict[int, str] = {}
        groups: dict[int, int] = {}
        for index, group in enumerate(event.groups):
            names.update(zip(group.ids, group.params))
            groups.update(dict.fromkeys(group.ids, index))
            self.is_of_models |= not all(map(is_unowned, group.params))
        known = self.by_id.get(event.id)
        holder = self.by_id[event.id] = Holder(
            event=event,
            made=event if known is None else known.made,
            ids=frozenset(names),
            names=names,
            groups=groups,
        )
        return holder

    def held(self) -> set[int]:
        """Identities of the parameters of all optimizers."""
        return {identity for holder in self.by_id.values() for identity in holder.ids}

    def of(self, identity: int) -> set[str]:
        """The optimizers that hold this parameter."""
        return {id_ for id_, holder in self.by_id.items() if identity in holder.ids}


UPDATED = 2  # steps that change it: a limit on weights (WGAN) also does once

Key = TypeVar("Key", bound=Hashable)
Claim = TypeVar("Claim")


@dataclass(slots=True)
class _Doubt(Generic[Claim]):
    """held: claims that are held back. changes: further consecutive steps that changed it."""

    held: list[Claim] = field(default_factory=list)
    changes: int = 0


class ByHand(Generic[Key, Claim]):
    """Holds claims about a parameter back until later steps show whether it is updated.

    Keys name parameters: an identity, or a name.
    """

    def __init__(self) -> None:
        self._doubts: dict[Key, _Doubt[Claim]] = {}
        self._moving: set[Key] = set()
        self._resting: set[Key] = set()
        self._changed: set[Key] = set()

    @property
    def is_open(self) -> bool:
        """Whether any claim is held back."""
        return bool(self._doubts)

    def note(self, changed: Iterable[Key]) -> None:
        """Note parameters that differ from the scan before, in any step."""
        self._changed.update(changed)

    def settle(self, found: Iterable[tuple[Key, Claim]]) -> list[Claim]:
        """The claims that are certain after this step, earlier ones included.

        found: claims of this step, by parameter.
        """
        certain: list[Claim] = []
        for key, doubt in list(self._doubts.items()):
            if key not in self._changed:
                self._resting.add(key)
                certain += self._doubts.pop(key).held
                continue
            doubt.changes += 1
            if doubt.changes == UPDATED:
                self._moving.add(key)
                del self._doubts[key]
        for key, claim in found:
            if key in self._resting:
                certain.append(claim)
            elif key not in self._moving:
                self._doubts.setdefault(key, _Doubt()).held.append(claim)
        self._changed.clear()
        return certain

    def finish(self) -> list[Claim]:
        """The claims that no step has contradicted."""
        doubts, self._doubts = self._doubts, {}
        return [claim for doubt in doubts.values() if not doubt.changes for claim in doubt.held]


IN_FORCE = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
    kinds=frozenset({"checkpoint", "optimizer", "step"}),
) | needs_of(LoadedHyperparameters)
_FAINT = 1e-6  # of the largest rate


@dataclass(slots=True)
class Load:
    """A load of the state of an optimizer that changed hyper-parameters.

    Attributes:
        mark: the record, which follows the first update.
        updates: steps with an update since that record.
        varies: whether a rate changed since then.
    """

    mark: MarkEvent
    settings: Sequence[LoadedSetting]
    where: str | None
    updates: int = 0
    varies: bool = False


@dataclass(slots=True)
class GroupRates:
    """The learning rates of one group over all recorded updates.

    Attributes:
        first, last: of the first and the last update.
        changes: number of updates that had another rate than the one before.
        since: updates after the last change.
        was_zero: whether any was zero.
        peak: the largest.
        faint: updates at the end with less than a millionth of it, and more than zero.
        faint_in: the first of these.
    """

    first: float
    last: float
    changes: int = 0
    changed_in: StepEvent | None = None
    since: int = 0
    was_zero: bool = False
    peak: float = 0.0
    faint: int = 0
    faint_in: StepEvent | None = None

    def enter(self, rate: float, event: StepEvent) -> None:
        """The rate of the next update."""
        if rate != self.last:
            self.last, self.changed_in = rate, event
            self.changes += 1
            self.since = 0
        else:
            self.since += 1
        self.was_zero |= not rate
        self.peak = max(self.peak, rate)
        self.faint = self.faint + 1 if 0 < rate < _FAINT * self.peak else 0
        if self.faint == 1:
            self.faint_in = event


@dataclass(slots=True)
class Course:
    """The hyper-parameters of one optimizer.

    Attributes:
        made: its creation: the values of the constructor, and its line.
        groups: rates of each group; empty once the number of groups has changed.
        updates: recorded steps in which it stepped.
        schedulers: classes of its schedulers, with the line of their creation or first step.
        loads: in order.
        is_loaded: whether its state was loaded.
        takes_base_rate: whether a scheduler starts from the base rate of what was loaded: it was
            created after the load, or loaded itself.
    """

    made: OptimizerEvent
    groups: list[GroupRates] = field(default_factory=list)
    updates: int = 0
    schedulers: dict[str, str | None] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    is_followed: bool = True
    is_loaded: bool = False
    takes_base_rate: bool = False

    @property
    def label(self) -> str:
        """``opt0 (Adam)``."""
        return f"{self.made.id} ({self.made.cls.rpartition('.')[2]})"

    def asked(self, name: str) -> list[float | None]:
        """The number that the constructor set in each group."""
        return [number(group.hyper.get(name)) for group in self.made.groups]

    def update(self, rates: Sequence[float], event: StepEvent) -> None:
        """It stepped with these rates."""
        self.updates += 1
        if self.groups and len(rates) != len(self.groups):
            self.is_followed = False
        if not self.is_followed:
            return
        if not self.groups:
            self.groups = [GroupRates(rate, rate, was_zero=not rate, peak=rate) for rate in rates]
            return
        before = [group.last for group in self.groups]
        for group, rate in zip(self.groups, rates):
            group.enter(rate, event)
        for load in self.loads:
            load.updates += 1
            load.varies |= [group.last for group in self.groups] != before


class HyperparametersInForce(RunState):
    """Follows the hyper-parameters of all optimizers of a process, by id.

    Attributes:
        courses: of all optimizers that were created, alive or not.
        has_gap: whether steps were not recorded.
    """

    def __init__(self) -> None:
        self.courses: dict[str, Course] = {}
        self.has_gap = False
        self._stepped: set[str] = set()

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            if event.change == "created" or event.id not in self.courses:
                self.courses[event.id] = Course(event)
        elif isinstance(event, CallEvent):
            self._enter_call(event)
        elif isinstance(event, StepEvent):
            self.has_gap |= not event.recorded
            for owner in self._stepped:
                rates = event.lr.get(owner)
                if rates:
                    self.courses[owner].update(rates, event)
            self._stepped.clear()
        elif isinstance(event, CheckpointEvent):
            for owner, course in self.courses.items() if event.op == "load_state_dict" else ():
                course.is_loaded |= event.owner == owner
                course.takes_base_rate |= event.target in course.schedulers
        elif isinstance(event, MarkEvent):
            found = observed(event, LoadedHyperparameters)
            if found is not None and found.owner in self.courses:
                load = Load(event, found.settings, found.where)
                self.courses[found.owner].loads.append(load)

    def _enter_call(self, event: CallEvent) -> None:
        course = self.courses.get(str(event.owner))
        family = event.family or event.api
        if course is None or event.exception is not None:
            return
        if family == Families.OPTIMIZER_STEP:
            self._stepped.add(course.made.id)
        elif family in (Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED):
            course.schedulers.setdefault(event.api.rpartition(".")[0], event.where)
            course.takes_base_rate |= course.is_loaded and family == Families.SCHEDULER_CREATED
