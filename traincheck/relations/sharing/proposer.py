"""Propose which names stand for one tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.facts.steps import is_judged
from traincheck.facts.variables import Variable, Variables
from traincheck.relations.base import ProposerBase
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent

APART, OWN = "apart", "own"
_MOST_GROUPS = 24  # of names that share, in one program


class SharingProposer(ProposerBase):
    """Proposes what is true when the first training step ends."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._variables = Variables()
        self._claims: list[dict[str, Any]] = []
        self._has_gap = False  # steps were not recorded, in which variables may have come

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._variables.observe(event)
        elif isinstance(event, OptimizerEvent):
            self._variables.hold(event)
        elif isinstance(event, StepEvent):
            self._has_gap |= event.is_gap
            if not (self._claims or self._has_gap) and is_judged(event):
                self._claims = list(self._read())
        else:
            self._program.observe(event)

    def _read(self) -> Iterator[dict[str, Any]]:
        groups = groups_of(self._variables.by_role["parameter"].values())
        shared = [names for names in groups if len(names) > 1]
        tied = {name.partition(".")[0] for names in shared for name in names}
        yield {"is": OWN}
        for model in sorted(self._variables.held_models() - tied):
            if "#" not in model:  # not a second model of its class
                yield {"is": APART, "model": model}
        for names in shared if len(shared) <= _MOST_GROUPS else ():
            yield {"names": names}

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        for claim in self._claims if program is not None else ():
            yield Hypothesis(relation="sharing", params={"program": program, **claim})


def groups_of(variables: Iterable[Variable]) -> list[list[str]]:
    """Names by the tensor that they stand for."""
    found: dict[int, list[str]] = defaultdict(list)
    for variable in variables:
        found[variable.identity].append(variable.name)
    return sorted(sorted(names) for names in found.values())
