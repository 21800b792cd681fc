"""The input of the table of causes: the first difference, and what is known around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.diff.difference import EnvironmentEntry, Resume
from traincheck.diff.items import Item
from traincheck.diff.lookup import Lookup
from traincheck.diff.phases import Phase
from traincheck.diff.run_facts import RankFacts
from traincheck.diff.state import Variable
from traincheck.diff.steps import StepView


@dataclass(slots=True, kw_only=True)
class Side:
    """One run at the step of the first difference.

    Attributes:
        label: how the report calls it.
        view: the step. last: the step before it; None at the first.
        facts: what is kept of its earlier steps.
        values: of its variables when the step ended.
        lookup: finds a value of the run.
    """

    label: str
    view: StepView
    last: StepView | None
    facts: RankFacts
    values: Mapping[Variable, bytes | None]
    lookup: Lookup


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that an explanation may use.

    Attributes:
        item: the first difference.
        items: all differences of its step, the first cause first.
        a, b: the two runs.
        environment: facts of the processes that differ.
        resume: where B continues A.
        is_ranks: whether the two are ranks of one run.
    """

    item: Item
    items: Sequence[Item]
    a: Side
    b: Side
    environment: tuple[EnvironmentEntry, ...] = ()
    resume: Resume | None = None
    is_ranks: bool = False
    later: Sequence[Item] = field(default=())

    def of(self, phase: Phase) -> list[Item]:
        """The differences of one phase in this step."""
        return [item for item in self.items if item.phase is phase]

    def named(self, name: str) -> EnvironmentEntry | None:
        """A fact of the processes that differs, by its name."""
        return next((entry for entry in self.environment if entry.name == name), None)
