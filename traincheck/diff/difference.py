"""The result of a comparison: the first difference, its cause, and what was compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from traincheck.diff.items import Item, Phase
from traincheck.diff.messages import Told
from traincheck.diff.sources import Change
from traincheck.schema.findings import FINDINGS, NOTHING_CHECKED
from traincheck.schema.record import Record

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The likely cause of a difference.

    Attributes:
        code: short name of the cause, from the table of causes; of a broken rule, its code.
        text: the cause, as a sentence without its end.
        fix: what to change, as an imperative.
        details: facts that speak for it, one a line.
        where: ``file:line`` of the user's code; "" if not known.
    """

    code: str
    text: Told
    fix: str = ""
    details: tuple[Told, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cause that is not proven.

    Attributes:
        explanation: the cause.
        unknown: what the traces do not show, and would decide.
        rivals: what differs too, and may have the effect as well.
    """

    explanation: Explanation
    unknown: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first thing that differs, in the order in which one phase causes the next.

    Attributes:
        step: of run A, from 0. step_b: of run B; another number after a resume.
        phase: what it is in.
        rank: where it was found.
        name: of the variable, module, loader or generator.
        message: what is different, as a sentence without its end.
        a, b: the values as text.
        is_opening: whether it is there before the first batch of the step.
        size: the relative difference; None if no number was recorded.
        where: ``file:line`` of the user's code; "" if not known.
    """

    step: int
    step_b: int
    phase: Phase
    rank: int
    name: str
    message: Told
    a: str = ""
    b: str = ""
    is_opening: bool = False
    size: float | None = None
    where: str = ""
    item: Item | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCount:
    """How much of one phase differs in the step of the first difference."""

    phase: Phase
    differing: int
    compared: int
    unknown: int


class EnvironmentEntry(Record, frozen=True):
    """A fact about the processes that two runs have differently."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where run B continues run A.

    Attributes:
        step: the step of A that B begins with.
        path: of the checkpoint; None if not known.
        parameters: how many parameters are those of A there.
        of: how many were compared.
        where: line that loads it.
    """

    step: int
    path: str | None
    parameters: int
    of: int
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The result of `traincheck diff`.

    Attributes:
        a, b: the run directories, or one with its ranks.
        first: the first difference; None if nothing differs.
        cause: its cause; None if none is proven.
        candidates: causes that are possible, if none is proven.
        changes: lines of the user's code that differ, those next to the first difference first.
        phases: the step of the first difference, phase by phase.
        then: the differing items of that step after the first.
        environment: facts of the processes that differ.
        resume: where B continues A; None if both begin at the same point.
        steps: how many steps were compared. alike_after: of those after the first difference, how
            many are alike.
        after: how many steps after the first difference were compared.
        growth: step -> relative difference of the loss, from the first difference on.
        compared, unknown: by phase, how many values were compared in all, and how many could not.
        closeness: when values count as alike, as words.
        notes: what limits the comparison, as sentences.
        labels: how reports call the two; empty for the names of their directories.
    """

    a: str
    b: str
    first: FirstDifference | None
    cause: Explanation | None = None
    candidates: tuple[Candidate, ...] = ()
    changes: tuple[Change, ...] = ()
    phases: tuple[PhaseCount, ...] = ()
    then: tuple[Item, ...] = ()
    environment: tuple[EnvironmentEntry, ...] = ()
    resume: Resume | None = None
    steps: int = 0
    after: int = 0
    alike_after: int = 0
    growth: Mapping[int, float] = field(default_factory=dict)
    compared: Mapping[Phase, int] = field(default_factory=dict)
    unknown: Mapping[Phase, int] = field(default_factory=dict)
    closeness: str = "bit for bit"
    notes: tuple[Told, ...] = ()
    labels: tuple[str, str] = ("", "")

    @property
    def same(self) -> bool:
        """Whether something was compared, and nothing differs."""
        return self.first is None and self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """0 same, 1 a difference, 4 nothing could be compared."""
        if self.first is not None:
            return FINDINGS
        return 0 if sum(self.compared.values()) else NOTHING_CHECKED

    def _repr_html_(self) -> str:
        from traincheck.page.notebook import difference_html

        return difference_html(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values; keys are only ever added."""
        return {
            "schema_version": SCHEMA_VERSION,
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "first": None
            if (first := self.first) is None
            else {
                "step": first.step,
                "step_b": first.step_b,
                "phase": first.phase.value,
                "rank": first.rank,
                "name": first.name,
                "message": first.message,
                "a": first.a,
                "b": first.b,
                "before_first_batch": first.is_opening,
                "size": _number(first.size),
                "where": first.where or None,
            },
            "cause": None if self.cause is None else _cause(self.cause),
            "candidates": [
                {
                    **_cause(one.explanation),
                    "unknown": list(one.unknown),
                    "rivals": list(one.rivals),
                }
                for one in self.candidates
            ],
            "changes": [
                {
                    "place": change.place,
                    "function": change.function,
                    "path_a": change.path_a or None,
                    "path_b": change.path_b or None,
                    "line_a": change.at_a,
                    "line_b": change.at_b,
                    "a": [text for _, text in change.a],
                    "b": [text for _, text in change.b],
                }
                for change in self.changes
            ],
            "phases": [{**asdict(count), "phase": count.phase.value} for count in self.phases],
            "then": [
                {
                    "phase": item.phase.value,
                    "name": item.name,
                    "what": item.what,
                    "leaf": item.leaf,
                    "index": item.index,
                    "size": _number(item.size),
                }
                for item in self.then
            ],
            "environment": [{"name": e.name, "a": e.a, "b": e.b} for e in self.environment],
            "resume": None
            if self.resume is None
            else {**asdict(self.resume), "where": self.resume.where or None},
            "steps": self.steps,
            "steps_after": self.after,
            "steps_alike_after": self.alike_after,
            "growth": {str(step): size for step, size in self.growth.items()},
            "compared": {phase.value: number for phase, number in self.compared.items()},
            "unknown": {phase.value: number for phase, number in self.unknown.items()},
            "closeness": self.closeness,
            "notes": list(self.notes),
        }


def _cause(cause: Explanation) -> dict[str, Any]:
    return {**asdict(cause), "details": list(cause.details), "where": cause.where or None}


def _number(value: float | None) -> float | str | None:
    """A number as JSON can hold it."""
    if value is None or value - value == 0.0:
        return value
    return str(value)
