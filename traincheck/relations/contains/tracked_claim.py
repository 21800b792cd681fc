"""A claim about state, and the variables that it covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from traincheck.facts.variables import Variable, Variables, select
from traincheck.relations.example_cache import Examples
from traincheck.relations.phrasing import STEP
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Example

# Variables, their names, and the parameters behind them
Population: TypeAlias = tuple[list[Variable], frozenset[str], frozenset[str]]


@dataclass(slots=True, eq=False)
class TrackedClaim:
    """A claim and the variables that it covers now.

    Attributes:
        populations: the variables of a window, by the optimizer that steps.
        known: the answer if all of them changed, by optimizer and modes; it never varies.
        lapses: for a claim about first changes, the steps without one, by name and identity.
        rests: steps in which parameters did not change that had changed before.
        reached: variables that have changed.
        fickle: names, without numbers, of variables that change in some steps only.
    """

    index: int
    params: Mapping[str, Any]
    outer: str
    role: str
    change: str
    variables: list[Variable] = field(default_factory=list)
    populations: dict[tuple[str | None, bool], Population] = field(default_factory=dict)
    known: dict[tuple[Any, ...], Examples] = field(default_factory=dict)
    lapses: dict[tuple[str, int], list[StepEvent]] = field(default_factory=dict)
    rests: dict[tuple[str, int], list[Example]] = field(default_factory=dict)
    reached: set[tuple[str, int]] = field(default_factory=set)
    fickle: set[str] = field(default_factory=set)

    def select(self, variables: Variables) -> None:
        """Take the variables that exist now."""
        self.variables = select(variables, self.params)
        self.populations.clear()
        self.known.clear()

    def population(
        self, owner: str | None, variables: Variables, *, has_updates: bool
    ) -> Population:
        """The variables that a window covers, their names, and the parameters behind them.

        Args:
            owner: the optimizer whose update is the window; None if a step is.
            variables: all variables of the process.
            has_updates: whether any optimizer stepped.
        """
        is_parameter = self.role == "parameter"
        # What no optimizer holds changes where the program updates it: asked beside updates only
        is_by_hand = self.outer == STEP and is_parameter and not has_updates
        found = self.populations.get((owner, is_by_hand))
        if found is None:
            covered = self.variables
            if is_by_hand:
                covered = [v for v in covered if variables.is_held(v)]
            if self.outer != STEP and is_parameter:
                covered = [v for v in covered if variables.held_by(owner, v)]
            elif self.outer != STEP:
                covered = [v for v in covered if v.owner == owner]
            names = frozenset(variable.name for variable in covered)
            bases = frozenset(variable.base for variable in covered)
            found = self.populations[owner, is_by_hand] = (covered, names, bases)
        return found
