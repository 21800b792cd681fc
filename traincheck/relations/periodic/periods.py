"""Find the periods in which variables change, and the widest kinds that share one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.readings.provider import RunStates
from traincheck.readings.step_changes import StepChanges
from traincheck.readings.steps import is_judged
from traincheck.readings.variables import Variable, Variables
from traincheck.relations.base import ProposerBase
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event, StateEvent, StepEvent

ROLES = ("buffer", "optimizer_state", "parameter")
MAX_PERIOD = 1000
_MIN_PROPOSED = 2  # *contains* covers changes in every step
_MIN_GAPS = 3  # equal gaps of a variable, before a period is proposed
_Selector = tuple[tuple[str, str], ...]  # narrows a role


@dataclass(slots=True)
class _Track:
    """The changes of one variable. last: the training step of the last change, if it is known."""

    variable: Variable
    last: int | None = None
    gaps: tuple[int, ...] = ()  # distinct ones, at most two
    longest: int = 0
    count: int = 0


class PeriodicProposer(ProposerBase):
    """Proposes a period where all variables of a kind have the same one."""

    def __init__(self) -> None:
        self._changes = StepChanges()
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._steps = 0

    uses = (Variables,)

    def bind(self, run_states: RunStates) -> None:
        self._variables = run_states.of(Variables)

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._changes.observe(event)
        elif isinstance(event, StepEvent):
            if not event.recorded:
                for track in self._tracks.values():
                    track.last = None
            elif is_judged(event):
                self._steps += 1
                for role in ROLES:
                    for name in self._changes.changed[role]:
                        self._enter(role, name)
            self._changes.turn(event)

    def _enter(self, role: str, name: str) -> None:
        variable = self._variables.by_role[role].get(name)
        if variable is None:
            return
        track = self._tracks.get((role, name))
        if track is None:
            track = self._tracks[role, name] = _Track(variable)
        if track.last is not None:
            gap = self._steps - track.last
            track.count += 1
            track.longest = max(track.longest, gap)
            if gap not in track.gaps and len(track.gaps) <= 1:
                track.gaps += (gap,)
        track.last = self._steps

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Of each variable, the widest kind that has one period."""
        periods: dict[tuple[str, _Selector], set[int]] = defaultdict(set)
        for track in self._tracks.values():
            for selector in _selectors(track.variable):
                # The gap between changes of a variable; 0 when it varies or is not known yet
                periods[track.variable.role, selector].add(
                    track.gaps[0] if len(track.gaps) == 1 and track.count >= _MIN_GAPS else 0
                )
        found: set[tuple[str, _Selector, int]] = set()
        for track in self._tracks.values():
            role = track.variable.role
            for selector in _selectors(track.variable):
                if len(periods[role, selector]) == 1:
                    found.add((role, selector, min(periods[role, selector])))
                    break
        for role, selector, period in sorted(found):
            if _MIN_PROPOSED <= period <= MAX_PERIOD:
                params = {"role": role, **dict(selector), "period": period}
                yield Hypothesis(relation="periodic", params=params)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """The longest gap, where changes are too few to propose a period."""
        longest: dict[tuple[str, _Selector], int] = {}
        known: set[tuple[str, _Selector]] = set()
        for track in self._tracks.values():
            since = 0 if track.last is None else self._steps - track.last + 1
            for selector in _selectors(track.variable):
                key = track.variable.role, selector
                longest[key] = max(longest.get(key, 1), track.longest, since)
                if track.count >= _MIN_GAPS:
                    known.add(key)
        for (role, selector), period in sorted(longest.items()):
            if (role, selector) not in known and period <= MAX_PERIOD:
                params = {"role": role, **dict(selector), "period": period}
                yield Hypothesis(relation="periodic", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the variables that changed."""
        variables = [track.variable for track in self._tracks.values()]
        return (word({"role": v.role, **dict(s)}) for v in variables for s in _selectors(v))


def word(params: Mapping[str, Any]) -> str:
    """The term for a change of any of these variables."""
    narrow = (f"{key}={params[key]}" for key in ("leaf", "model", "module_class") if key in params)
    return " ".join((params["role"], *narrow, "changes"))


def _selectors(variable: Variable) -> Iterator[_Selector]:
    """From the widest to the narrowest. Buffers differ in kind, so their leaf is always named."""
    leaf = ("leaf", variable.leaf)
    yield (leaf,) if variable.role == "buffer" else ()
    yield (*((leaf,) if variable.role == "buffer" else ()), ("model", variable.model))
    yield leaf, ("module_class", variable.module_class)
