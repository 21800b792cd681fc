"""The checks that a trace can decide, and the verdict of each check.

A check that could not be decided never passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings.programs import program_of, source_of
from traincheck.schema.claims import Needs, Schedule, without_sampling
from traincheck.schema.events import MarkEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.instruments import FEEDS
from traincheck.schema.invariant_file import needs_from_json

_ALWAYS = frozenset({"step", "stage", "mark", "probe"})  # recorded whatever was asked for
# Moments. Variables are recorded when they are found, whatever was asked for; what the program
# updates itself, where gradients or parameters are recorded.
_WITH_OTHERS = frozenset({"new", "hand"})


@dataclass(slots=True)
class TraceView:
    """The recorded events of one process.

    Attributes:
        recorded: None for everything.
        schedule: the steps in which sampled data was recorded.
        stats: tensors whose statistics were recorded; None if unknown.
        off: instrument -> why it is off.
        program: file name of the program.
        source: sketch of its script; empty if it has none.
        level: at which calls of operators were recorded; None if unknown.
        packages: the user's packages whose functions were recorded.
    """

    recorded: Needs | None = None
    schedule: Schedule = field(default_factory=Schedule)
    stats: frozenset[str] | None = None
    off: dict[str, str] = field(default_factory=dict)
    program: str | None = None
    source: str = ""
    level: str | None = None
    packages: frozenset[str] = frozenset()

    @classmethod
    def from_mark(cls, mark: MarkEvent) -> TraceView:
        """The view that a "process" mark describes. What it does not mention counts as recorded."""
        view = cls.from_data(mark.data)
        view.program, view.source = program_of(mark), source_of(mark)
        return view

    @classmethod
    def from_data(cls, facts: Mapping[str, Any]) -> TraceView:
        """`from_mark`, from the data of the mark. It does not name the program."""
        recorded = facts.get("recorded")
        view = cls(recorded=None if recorded is None else _needs(recorded))
        match facts.get("some"):
            case [int(first), int(every)] if every > 0:
                view.schedule = Schedule(first=first, every=every)
        view.level = facts.get("level")
        packages = facts.get("packages")
        view.packages = frozenset(map(str, packages)) if isinstance(packages, list) else frozenset()
        stats = facts.get("stats")
        view.stats = frozenset(map(str, stats)) if isinstance(stats, list) else None
        instruments = facts.get("instruments")
        for name, state in instruments.items() if isinstance(instruments, dict) else ():
            if isinstance(state, str) and state.startswith("off"):
                view.off[name] = state.partition(":")[2].strip() or "switched off"
        return view

    def recorded_in(self, step: int | None, stage: str | None) -> Needs | None:
        """The needs recorded in a step; None for everything."""
        if self.recorded is None or not self.recorded.sampled_calls:
            return self.recorded
        return self.recorded.for_step(is_full=self.schedule.is_full(step, stage))

    def samples(self, needs: Needs) -> bool:
        """Whether calls or scans in ``needs`` were sampled."""
        recorded = self.recorded
        return recorded is not None and (
            any(map(needs.delivers, recorded.sampled_calls))
            or any(map(needs.scans, recorded.sampled_states))
        )

    def missing_for(self, needs: Needs) -> str | None:
        """Why the trace does not have what ``needs`` asks for, as a clause; None if it has."""
        for name, reason in sorted(self.off.items()):
            if name in FEEDS and FEEDS[name].serves(needs):
                return f"instrument {name} was off ({reason})"
        packages = sorted(needs.packages - self.packages)
        if packages:
            return f"the trace was recorded without --instrument {packages[0]}"
        if needs.level and self.level and needs.level != self.level:
            return f"the trace is of level {self.level}, which counts operators otherwise"
        if self.recorded is None:
            asked = without_sampling(needs.stats)
            numbers = sorted(asked - (asked if self.stats is None else self.stats))
            return f"the trace was recorded without numbers of {numbers[0]}" if numbers else None
        missing = _missing(needs, self.recorded)
        return f"the trace was recorded without {missing}" if missing else None


def instrument_named(source: str) -> str | None:
    """The instrument that failed, by its name or that of a method: ``Autograd._describe``."""
    name = source.partition(".")[0].lower()
    return name if name in FEEDS else None


def verdicts_of(
    check_ids: Iterable[str],
    violated: Mapping[str, int],
    triggered: Mapping[str, int],
    unobservable: Mapping[str, str],
) -> dict[str, Verdict]:
    """The verdict of each check. A violation counts even if the check was not fully observable."""
    verdicts = {}
    for check_id in check_ids:
        if check_id in violated:
            verdict = Verdict.VIOLATED
        elif check_id in unobservable:
            verdict = Verdict.NOT_OBSERVABLE
        elif triggered.get(check_id, 0):
            verdict = Verdict.HELD
        else:
            verdict = Verdict.NOT_TRIGGERED
        verdicts[check_id] = verdict
    return verdicts


def reasons(unobservable: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the number of checks that could not be decided."""
    counts: dict[str, int] = {}
    for reason in unobservable.values():
        counts[reason] = counts.get(reason, 0) + 1
    return [
        f"{count} {'check' if count == 1 else 'checks'} not observable: {reason}"
        for reason, count in sorted(counts.items())
    ]


def _needs(value: Any) -> Needs:
    try:
        return needs_from_json(value)
    except ValueError:
        return Needs()  # nothing is certain about a view that cannot be read


def _missing(needs: Needs, recorded: Needs) -> str | None:
    kinds = sorted(needs.kinds - recorded.kinds - _ALWAYS)
    if kinds:
        return f"{', '.join(kinds)} events"
    if "call" not in recorded.kinds and "*" not in recorded.calls:
        calls = sorted(without_sampling(needs.calls) - without_sampling(recorded.calls))
        if calls:
            return f"calls of {', '.join(calls[:3])}"
        rare = sorted(needs.calls & recorded.sampled_calls)
        if rare:
            return f"all calls of {', '.join(rare[:3])}"
    if "state" not in recorded.kinds:
        found = without_sampling(recorded.states)
        states = sorted(s for s in without_sampling(needs.states) if not _has_state(s, found))
        if states:
            return f"the state of {', '.join(states[:3])}"
        rare = sorted(needs.states & recorded.sampled_states)
        if rare:
            return f"the state of {', '.join(rare[:3])} in all steps"
    if needs.exact and not recorded.exact:
        return "exact fingerprints"
    stats = without_sampling(needs.stats - recorded.stats) - recorded.stats
    if stats:
        return f"numbers of {', '.join(sorted(stats)[:3])}"
    return None


def _has_state(state: str, recorded: frozenset[str]) -> bool:
    role, _, moment = state.partition("@")
    return moment in _WITH_OTHERS or not recorded.isdisjoint((state, f"{role}@*", "*", "*@*"))
