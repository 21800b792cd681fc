"""Settings of optimizers: weight decay by kind of parameter, and the rates that loads bring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.optimizers import IN_FORCE, Course, Holders, HyperparametersInForce
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent, StateEvent
from traincheck.schema.facts import Fact
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import (
    ATTRIBUTE,
    DEFAULTS,
    OLD_GROUP,
    OTHER_KEY,
    STATE_DICT,
    IneffectiveWrite,
    LoadedSetting,
    OverwrittenRates,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import number

_ALIKE = 1.1  # rates that differ by less are taken for the same
_RATE = "lr"
_PLACES = {
    STATE_DICT: "the groups of a state_dict()",
    OLD_GROUP: "a group that load_state_dict() has replaced",
    DEFAULTS: "the defaults, which new groups alone get",
    ATTRIBUTE: "an attribute",
    OTHER_KEY: "a key that its class does not have",
}

DECAY = Kind(
    "loop.weight decay",
    {
        "none": "{of} has no weight decay",
        "all alike": "{of} decays all of its {all:parameter} by {decay}",
        "weights alone": "{of} decays {weights:weight}, and none of {vectors:bias or scale}",
        "weights, all of them": "{of} decays {weights:weight}, and has no parameter of one dim",
        "biases in part": "{of} decays {number} of {vectors:bias or scale} beside a group without "
        "decay",
        "biases alike": "{of} has groups with different settings, and decays {vectors:bias or "
        "scale} as it does weights",
        "weights in part": "{of} decays {number} of {weights:weight}, and none of {vectors:bias or "
        "scale}",
    },
)
GROUPS = Kind(
    "loop.parameter groups",
    {
        "one": "{of} has one group of parameters",
        "several": "{of} has {groups} groups of parameters",
        "an empty one": "{number} of {groups} groups of {of} have no parameters",
    },
)
RATE = Kind(
    "loop.rate after a load",
    {
        "no load": "no state of an optimizer is loaded",
        "the same": "loads into {of} leave its learning rate as it was",
        "loaded": "a load into {of} sets the learning rate to {loaded}, which the next update uses",
        "loaded over a given one": "{of} is made with the learning rate {before}; a load sets it "
        "to {loaded}, which the next update uses, and no scheduler is made",
        "given": "a load into {of} sets the learning rate to {loaded}; the next update uses {later}"
        " as before the load",
        "another": "a load into {of} sets the learning rate to {loaded}; the next update uses "
        "{later}; it was {before} before the load",
    },
)
ELSEWHERE = Kind(
    "loop.settings that are not used",
    {
        "none": "no setting of an optimizer is written to a place that it does not read",
        "written elsewhere": "{name} of {of} is set to {written} in {place}; the optimizer uses "
        "{in_force}",
        "replaced": "{of} gets the learning rate {written}, which {scheduler} replaces by {used} "
        "before an update uses it",
    },
)


class Settings(FactReader):
    """Follows weight decay and the groups of optimizers."""

    kinds: ClassVar = (DECAY, GROUPS)
    needs: ClassVar = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer"}))
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._holders = Holders()
        self._dims: dict[int, int] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._holders.enter(event)
        elif isinstance(event, StateEvent) and event.role == "parameter" and event.summary:
            self._dims[event.identity] = len(event.summary.shape)

    def facts(self) -> Iterator[Fact]:
        for holder in self._holders.by_id.values():
            groups = holder.event.groups
            of, where = holder.label, holder.made.where or ""
            empty = sum(not group.params for group in groups)
            yield Fact(
                kind=GROUPS.name,
                of=of,
                seen_as="an empty one" if empty else "several" if len(groups) > 1 else "one",
                values={"number": empty, "groups": len(groups)},
                where=where,
            )
            seen_as, values = self._decay(holder.event)
            yield Fact(kind=DECAY.name, of=of, seen_as=seen_as, values=values, where=where)

    def _decay(self, event: OptimizerEvent) -> tuple[str, dict[str, int | float]]:
        decays = [number(group.hyper.get("weight_decay")) or 0.0 for group in event.groups]
        all_of, decayed = Counter[bool](), Counter[bool]()  # whether it has one dim, at most
        for group, decay in zip(event.groups, decays):
            flat = Counter(self._dims.get(identity, 2) <= 1 for identity in group.ids)
            all_of += flat
            decayed += flat if decay else Counter()
        values = {
            "all": all_of.total(), "decay": max(decays, default=0.0), "weights": all_of[False],
            "vectors": all_of[True], "number": decayed[True] or decayed[False],
        }  # fmt: skip
        used = {decay for group, decay in zip(event.groups, decays) if group.params}
        if not any(used):
            return "none", values
        if len(used) == 1:
            settings = {repr(sorted(group.hyper.items(), key=str)) for group in event.groups}
            is_flat = bool(all_of[True])
            return (
                "biases alike"
                if len(settings) > 1 and is_flat
                else "all alike"
                if is_flat
                else "weights, all of them"
            ), values
        if decayed[True]:
            return "biases in part", values
        return "weights alone" if decayed[False] == all_of[False] else "weights in part", values


class LoadedSettings(FactReader):
    """Follows rates after loads, and settings that no update uses."""

    kinds: ClassVar = (RATE, ELSEWHERE)
    needs: ClassVar = IN_FORCE | needs_of(IneffectiveWrite, OverwrittenRates)
    observes: ClassVar = needs_of(IneffectiveWrite, OverwrittenRates)
    uses: ClassVar = (HyperparametersInForce,)

    def __init__(self) -> None:
        self._unused: dict[str, Fact] = {}

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(HyperparametersInForce)

    def observe(self, event: Event) -> None:
        found = observed(event, IneffectiveWrite)
        course = self._state.courses.get(found.owner) if found is not None else None
        if found is not None and course is not None:
            self._unused.setdefault(
                f"{found.owner} {found.name}",
                Fact(
                    kind=ELSEWHERE.name,
                    of=course.label,
                    seen_as="written elsewhere",
                    values={
                        "name": found.name, "written": found.written, "in_force": found.in_force,
                        "place": _PLACES.get(found.place, found.place),
                    },
                    where=found.where or "",
                    first_step=event.step,
                ),
            )  # fmt: skip
            return
        rates = observed(event, OverwrittenRates)
        course = self._state.courses.get(rates.owner) if rates is not None else None
        if rates is not None and course is not None:
            values = {
                "written": max(rates.written, default=0.0),
                "used": max(rates.scheduled, default=0.0),
                "scheduler": rates.scheduler.rpartition(".")[2],
            }
            fact = Fact(
                kind=ELSEWHERE.name,
                of=course.label,
                seen_as="replaced",
                values=values,
                where=rates.where or "",
                first_step=event.step,
            )
            self._unused.setdefault(rates.owner, fact)

    def facts(self) -> Iterator[Fact]:
        if not self._unused:
            yield Fact(kind=ELSEWHERE.name, seen_as="none")
        yield from self._unused.values()
        loaded = [course for course in self._state.courses.values() if course.is_loaded]
        if not loaded:
            yield Fact(kind=RATE.name, seen_as="no load")
        for course in loaded:
            found = [
                (load.where, setting)
                for load in course.loads
                for setting in load.settings
                if setting.name == _RATE
            ]
            if not found:
                yield Fact(kind=RATE.name, of=course.label, seen_as="the same")
            for where, setting in found[:1]:
                seen_as = _restored(course, setting)
                texts = {
                    "before": setting.before, "loaded": setting.loaded, "later": setting.later,
                }  # fmt: skip
                values = {name: _as_number(text) for name, text in texts.items()}
                yield Fact(
                    kind=RATE.name,
                    of=course.label,
                    seen_as=seen_as,
                    values=values,
                    where=where or "",
                )


def _restored(course: Course, setting: LoadedSetting) -> str:
    if _are_alike(setting.loaded, setting.later):
        is_given = not setting.is_default and not course.schedulers
        return "loaded over a given one" if is_given else "loaded"
    return "given" if _are_alike(setting.before, setting.later) else "another"


def _as_number(text: str) -> float | str:
    """A rate; its text, if it is a tensor or no number."""
    try:
        return float(text)
    except ValueError:
        return text


def _are_alike(one: str, other: str) -> bool:
    """Whether two rates are the same but for one step of a schedule."""
    rates = _as_number(one), _as_number(other)
    if isinstance(rates[0], str) or isinstance(rates[1], str):
        return one == other
    low, high = sorted(map(float, rates))
    return low == high or 0 < low <= high < low * _ALIKE


READERS = (Settings, LoadedSettings)
