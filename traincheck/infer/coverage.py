"""The terms that a run could show: the calls and variables that occurred in it.

A run contradicts a claim if its coverage includes the subject, and it did not propose the claim.
Claims about APIs that are recorded only on request cannot be checked without that request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traincheck.readings.programs import ProgramName, Sketch, alike, file_of, source_of
from traincheck.readings.provider import RunStates
from traincheck.readings.step_changes import ADDED, Additions, StepChanges
from traincheck.readings.variables import variable_of
from traincheck.relations.phrasing import SEVERAL_RANKS, STEP
from traincheck.schema.claims import LEVELS, Hypothesis, Invariant, Needs, without_sampling
from traincheck.schema.events import (
    CallEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import LIFECYCLE_CHANGES, Marks
from traincheck.schema.protocols import Relation
from traincheck.schema.torch_api import Families, is_operator
from traincheck.store.manifest import one_step_in

# Calls that count as another call in claims.
_STAND_FOR = {
    Families.CLIP_VALUE: Families.CLIP_NORM,
    Families.SCALER_STEP: Families.OPTIMIZER_STEP,
}
_CALLS = ("api", "outer", "after", "before")  # parameters of a claim that name a call
_NARROW = ("leaf", "module_class", "model")  # parameters that narrow a role
_COLLECTIVE = "torch.distributed."
VariableKind = tuple[str, str, str, str]  # role, leaf, class of its module, model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCoverage:
    """The calls and variables of one run.

    Attributes:
        programs: file names, with a sketch of what they train (readings/programs.py).
        calls: APIs, families, dtypes of autocast, and terms that proposers observed.
        modules: names of the modules that were called.
        variables: kinds of them.
        packages: functions of the user's packages that were recorded, each with its package.
        levels: recording levels.
    """

    programs: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    variables: frozenset[VariableKind] = frozenset()
    packages: frozenset[tuple[str, str]] = frozenset()
    levels: frozenset[str] = frozenset()

    def could_observe(self, relation: Relation, claim: Hypothesis) -> bool:
        """Whether the subject of a claim occurred. True if that is not known.

        The subject is named by the parameters that mean the same in every relation, see
        `Relation.antecedent`.
        """
        params = relation.antecedent(claim)
        program = params.get("program")
        if program is not None and not any(alike(program, known) for known in self.programs):
            return False
        calls = [params[key] for key in _CALLS if params.get(key, STEP) != STEP]
        if params.get("autocast"):
            calls.append(f"autocast {params['autocast']}")
        if "module" in params and params["module"] not in self.modules:
            return False
        return self.calls.issuperset(calls) and self._has(params)

    def _has(self, params: Mapping[str, Any]) -> bool:
        if params.keys().isdisjoint(("role", "model", "under")):
            return True
        if "under" in params:  # a pattern that begins with the name of a model
            params = {**params, "model": re.split(r"[.\[]", params["under"])[0]}
        role = "parameter" if params.get("role") == "gradient" else params.get("role")
        wanted = (role, *(params.get(key) for key in _NARROW))
        return any(
            all(word in (None, found) for word, found in zip(wanted, kind))
            for kind in self.variables
        )


class CoverageCollector:
    """Collects the coverage of one process."""

    observes = Needs(
        kinds=frozenset({"call", "collective", "mark", "step"}),
        states=frozenset({"*@new", "gradient@*"}),
    )
    uses = (ProgramName,)

    def __init__(self) -> None:
        self._sketch = Sketch()
        self._calls: set[tuple[str, str | None, str | None, str | None]] = set()
        self._variables: set[VariableKind] = set()
        self._has_ranks = False
        self._packages: tuple[str, ...] = ()
        self._levels: frozenset[str] = frozenset()
        self._changes = StepChanges()
        self._additions = Additions(self._changes)
        # Whether backward accumulates; None: no gradient was scanned
        self._adds: bool | None = None

    def bind(self, run_states: RunStates) -> None:
        self._program = run_states.of(ProgramName)

    def observe(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            self._sketch.observe(event)
            self._additions.read()
            if event.recorded and self._additions.any_of():
                self._adds = True
            self._changes.turn(event)
        elif isinstance(event, CallEvent):
            self._calls.add((event.api, event.family, event.autocast, event.module))
            self._has_ranks |= event.rank > 0
        elif isinstance(event, StateEvent):
            if event.role == "gradient":
                self._changes.observe(event)
                self._adds = bool(self._adds)
            if event.change == "new":
                self._sketch.observe(event)
            if event.change in LIFECYCLE_CHANGES and event.role != "gradient":
                one = variable_of(event)
                self._variables.add((one.role, one.leaf, one.module_class, one.model))
        elif isinstance(event, CollectiveEvent):
            self._calls.add((f"{_COLLECTIVE}{event.op}", None, None, None))
        elif isinstance(event, MarkEvent) and event.text == Marks.PROCESS:
            self._sketch.source = self._sketch.source or source_of(event)
            self._levels |= {str(event.data.get("level", "default"))}
            self._packages = tuple(map(str, event.data.get("packages") or ()))

    def coverage(self) -> RunCoverage:
        """The coverage of the events so far."""
        calls = {word for api, family, *_ in self._calls for word in (api, family) if word}
        calls |= {f"autocast {dtype}" for _, _, dtype, _ in self._calls if dtype}
        calls |= {SEVERAL_RANKS} if self._has_ranks else set()
        calls |= {_STAND_FOR[word] for word in calls & _STAND_FOR.keys()}
        if Families.BACKWARD in calls and (Families.ZERO_GRAD in calls or self._adds is not False):
            calls.add(ADDED)
        name = self._program.name
        return RunCoverage(
            programs=frozenset() if name is None else frozenset({self._sketch.of(name)}),
            calls=frozenset(calls),
            modules=frozenset(module for *_, module in self._calls if module),
            variables=frozenset(self._variables),
            packages=frozenset(
                (api, package)
                for api, family, *_ in self._calls
                if family is None
                for package in self._packages
                if api.startswith(f"{package}.")
            ),
            levels=self._levels,
        )


def union(first: RunCoverage, second: RunCoverage) -> RunCoverage:
    """The coverage of two processes together."""
    programs = first.programs | second.programs
    trained = {file_of(name) for name in programs if file_of(name) != name}
    return RunCoverage(
        # A DataLoader worker trains nothing, and is not a separate program.
        programs=frozenset(name for name in programs if name not in trained),
        calls=first.calls | second.calls,
        modules=first.modules | second.modules,
        variables=first.variables | second.variables,
        packages=first.packages | second.packages,
        levels=first.levels | second.levels,
    )


def restrict_to_recorded(
    invariants: Iterable[Invariant], coverages: Sequence[RunCoverage]
) -> list[Invariant]:
    """Let invariants need the packages and the level of the runs that they were learned from.

    coverages: of these runs.
    """
    packages: dict[str, set[str]] = {}
    for one in coverages:
        for api, package in one.packages:
            packages.setdefault(api, set()).add(package)
    found = []
    for invariant in invariants:
        calls = without_sampling(invariant.needs.calls)
        asked = frozenset().union(*(packages[api] for api in calls & packages.keys()))
        operators = frozenset(filter(is_operator, calls))
        levels = {level for one in coverages if operators & one.calls for level in one.levels}
        # Empty if the runs that call these operators have both levels.
        level = levels.pop() if len(levels) == 1 and levels <= set(LEVELS) else ""
        needs = replace(invariant.needs, packages=asked, level=level)
        found.append(replace(invariant, needs=needs))
    return found


def view_notes(settings: Mapping[str, Any]) -> list[str]:
    """Sentences on what a run was recorded without. settings: of its manifest."""
    notes = []
    if settings.get("needs") is not None:
        notes.append(
            "only what some checks need was recorded, so less can be learned: record with "
            "traincheck-collect, without -i and --rules"
        )
    every = one_step_in(settings)
    if every > 1:
        notes.append(f"one step in {every:,} was recorded, so less can be learned")
    return notes
