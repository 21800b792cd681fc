"""Properties of the hyper-parameters in force."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.relations.property.base import MANY, EventReader, Property, Reading
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import IneffectiveWrite, LoadedHyperparameters
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_ASKED, _LOADED, _OTHER = "asked", "loaded", "other"
_IN_FORCE, _ELSEWHERE = "in force", "elsewhere"
_NAMES = {"lr": "learning rate", "initial_lr": "initial learning rate"}


def _loaded(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadedHyperparameters)
    if found is None:
        return
    for each in found.settings:
        name = _NAMES.get(each.name, each.name)
        value = _OTHER
        if each.later in (each.before, each.loaded):
            value = _ASKED if each.later == each.before else _LOADED
        seen = (
            f"the program set the {name} to {each.before}, the load to {each.loaded}, and the next "
            f"update uses {each.later}"
        )
        yield Reading(
            of=f"{name} of group {each.group} of {found.owner}",
            value=value,
            seen=seen,
            at=Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            event=event,
            weight=MANY,
        )


def _written(event: Event) -> Iterable[Reading]:
    if isinstance(event, CallEvent) and (event.family or event.api) == Families.OPTIMIZER_STEP:
        owner = str(event.owner)
        at = Subject(api=Families.OPTIMIZER_STEP, variable=owner)
        yield Reading(of=owner, value=_IN_FORCE, seen="", at=at, event=event)
    found = observed(event, IneffectiveWrite)
    if found is not None:
        name = _NAMES.get(found.name, found.name)
        yield Reading(
            of=found.owner,
            value=_ELSEWHERE,
            seen=f"the {name} is set to {found.written} in a place that {found.owner} does not "
            f"read ({found.place}), and stays {found.in_force}",
            at=Subject(api=Families.OPTIMIZER_STEP, variable=found.owner),
            event=event,
        )


LOADED_SETTING = Property(
    name="loaded_setting",
    needs=needs_of(LoadedHyperparameters),
    reader=partial(EventReader, _loaded),
    claims={
        _ASKED: "after a load, the {of} is the one that the program set before it",
        _LOADED: "after a load, the {of} is the loaded one",
    },
    headline="After a load, another hyper-parameter is in force than in the reference runs",
    cause="Optimizer.load_state_dict() also restores hyper-parameters.",
    fix='Set it again after the load: for group in optimizer.param_groups: group["lr"] = lr.',
    symptom=Symptom.SCHEDULE,
)
WRITTEN_SETTING = Property(
    name="written_setting",
    needs=needs_of(IneffectiveWrite) | Needs(calls=frozenset({Families.OPTIMIZER_STEP})),
    reader=partial(EventReader, _written),
    claims={_IN_FORCE: "each hyper-parameter that is set is one that {of} reads"},
    headline="A hyper-parameter is now set where the optimizer does not read it",
    cause="The program may write to a copy of the groups.",
    fix='Write to the groups in use: for group in optimizer.param_groups: group["lr"] = lr.',
    symptom=Symptom.SCHEDULE,
)
