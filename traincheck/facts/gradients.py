"""Where gradients go: those that are applied twice, that no update uses, and that nobody holds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from traincheck.facts.kinds import SHOWN, Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.provider import RunStates
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment
from traincheck.readings.training_state import TrainingState
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_FEW = 3  # updates
_MOSTLY = 0.5
_SELDOM = 0.1
_MOST = 256  # backward passes whose gradients are awaited

STAYING = Kind(
    "signal.gradients that stay",
    {
        "none": "each recorded update of {of} gets new gradients",
        "now and then": "some parameters of {of} get the gradient of the update before again, in "
        "{number} of {updates:update}",
        "some": "{number} of {all} parameters of {of} get the gradient of the update before again "
        "in most updates: {names}",
        "all": "all {all} parameters of {of} get the gradient of the update before again in most "
        "updates",
    },
    unsaid="Something may be added to a gradient between its updates.",
)
UNUSED = Kind(
    "loop.gradients that no update uses",
    {
        "none": "no gradient is cleared before an update uses it",
        "in part": "some gradients of {number} of {passes:backward pass} are cleared before an "
        "update uses them",
        "now and then": "all gradients of {number} of {passes:backward pass} are cleared before an "
        "update uses them",
        "whole passes": "all gradients of {number} of {passes:backward pass} are cleared before an "
        "update uses them",
    },
    unsaid="A pass for another optimizer, as of a GAN, is in part of no use.",
)
HELD = Kind(
    "signal.gradients of nobody",
    {
        "none": "each parameter with a gradient is in an optimizer",
        "some": "{number} parameters get gradients and are in no optimizer: {names}",
    },
)
FROZEN = Kind(
    "signal.frozen parameters in an optimizer",
    {
        "none": "each parameter of {of} requires grad",
        "some": "{number} of {all} parameters of {of} do not require grad: {names}",
        "all": "none of the {all} parameters of {of} requires grad",
    },
)


@dataclass(slots=True)
class _Pass:
    """A backward pass: its gradients that wait for an update, and what came of the others."""

    waiting: set[int]
    is_used: bool = False
    is_lost: bool = False


class Gradients(FactReader):
    """Follows gradients from the backward pass to the updates of each optimizer."""

    kinds: ClassVar = (STAYING, UNUSED, HELD, FROZEN)
    needs: ClassVar = DISCOVERY | GRADIENTS
    observes: ClassVar = Needs(kinds=frozenset({"step"}))
    uses: ClassVar = (TrainingState,)

    def __init__(self) -> None:
        self._updates: Counter[str] = Counter()
        self._again: dict[str, Counter[int]] = {}
        self._times: Counter[str] = Counter()  # updates with a gradient that was applied before
        self._new: set[int] = set()  # since the last update
        self._known: set[str] = set()  # optimizers with an update since the last gap
        self._passes: deque[_Pass] = deque(maxlen=_MOST)
        self._ended: Counter[str] = Counter()
        self._reached: set[str] = set()

    def bind(self, run_states: RunStates) -> None:
        self._state = run_states.of(TrainingState)

    def observe(self, event: Event) -> None:
        ended = self._state.ended
        if not isinstance(event, StepEvent) or ended is None:
            return
        if not ended.is_complete or ended.has_own:
            self._new.clear()
            self._known.clear()
            self._passes.clear()
            return
        held = self._state.held()
        self._reached.update(self._state.names(ended.reached - held))
        for moment in ended.moments:
            self._lose(moment.cleared)
            self._new |= moment.reached
            if moment.family == Families.BACKWARD and moment.reached & held:
                self._passes.append(_Pass(set(moment.reached & held)))
            elif moment.family == Families.OPTIMIZER_STEP and moment.call.exception is None:
                self._update(moment)

    def _lose(self, cleared: frozenset[int]) -> None:
        """Gradients are cleared: those of a pass that still wait are lost."""
        for each in self._passes if cleared else ():
            each.is_lost |= not cleared.isdisjoint(each.waiting)
            each.waiting -= cleared
        self._end()

    def _end(self) -> None:
        """Count the passes whose gradients have all been used or cleared."""
        for each in [one for one in self._passes if not one.waiting]:
            self._passes.remove(each)
            self._ended["none" if not each.is_lost else "part" if each.is_used else "whole"] += 1

    def _update(self, moment: Moment) -> None:
        owner = moment.call.owner or ""
        holder = self._state.holders.get(owner)
        if holder is None:
            return
        for each in self._passes:
            each.is_used |= not moment.applied.isdisjoint(each.waiting)
            each.waiting -= holder.ids
        self._end()
        if owner in self._known:
            again = moment.applied - self._new
            self._updates[owner] += 1
            self._times[owner] += bool(again)
            self._again.setdefault(owner, Counter()).update(again)
        self._known.add(owner)
        self._new -= holder.ids

    def facts(self) -> Iterator[Fact]:
        if not self._state.holders:
            return
        held = self._state.held()
        loose = [
            parameter.name
            for identity, parameter in self._state.parameters.items()
            if identity not in held and parameter.requires_grad and parameter.name in self._reached
        ]
        values = {"number": len(loose), "names": joined(sorted(loose), SHOWN)}
        yield Fact(kind=HELD.name, seen_as="some" if loose else "none", values=values)
        if self._ended:
            yield self._unused()
        for owner, updates in self._updates.items():
            holder = self._state.holders.get(owner)
            if holder is None or updates < _FEW:
                continue
            of, where, whole = holder.label, holder.made.where or "", len(holder.ids)
            again = [one for one, times in self._again[owner].items() if times > _MOSTLY * updates]
            seen_as = (
                "none"
                if not self._times[owner]
                else "now and then"
                if not again
                else "all"
                if len(again) == whole
                else "some"
            )
            values = {
                "number": len(again) or self._times[owner], "all": whole, "updates": updates,
                "names": joined(sorted(self._state.name(one) for one in again), SHOWN),
            }  # fmt: skip
            yield Fact(kind=STAYING.name, of=of, seen_as=seen_as, values=values, where=where)
            known = self._state.parameters
            frozen = [one for one in holder.ids if one in known and not known[one].requires_grad]
            values = {
                "number": len(frozen), "all": whole,
                "names": joined(sorted(self._state.name(one) for one in frozen), SHOWN),
            }  # fmt: skip
            seen_as = "none" if not frozen else "all" if len(frozen) == whole else "some"
            yield Fact(kind=FROZEN.name, of=of, seen_as=seen_as, values=values, where=where)

    def _unused(self) -> Fact:
        whole, part, passes = self._ended["whole"], self._ended["part"], self._ended.total()
        seen_as = (
            "whole passes"
            if whole > _SELDOM * passes
            else "in part"
            if part
            else "now and then"
            if whole
            else "none"
        )
        number = part if seen_as == "in part" else whole
        return Fact(kind=UNUSED.name, seen_as=seen_as, values={"number": number, "passes": passes})


READERS = (Gradients,)
