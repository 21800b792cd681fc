"""Functions that a program called, as they were seen in single steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from traincheck.readings.provider import RunState
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.observations.reading import observed

_LINES = 1024  # that are followed in a process
_LOOKS = 128  # of a line that are kept: the first ones, and the last one


class Operation(NamedTuple):
    """A function that one line calls.

    Attributes:
        look: what was looked at, as in `OperationUse`.
        function: its name.
        where: the line.
        of: the name of the argument, for inputs of a model.
    """

    look: str
    function: str
    where: str
    of: str = ""


class Look(NamedTuple):
    """One step in which the line was looked at.

    Attributes:
        event: the record.
        calls: of the function in this line, in this step.
        numbers: means over the first of them.
    """

    event: Event
    calls: int
    numbers: Mapping[str, float]

    def alone(self, operation: Operation) -> Event:
        """The record with this line alone, so that it can be shown."""
        use = {**operation._asdict(), "calls": self.calls, "numbers": dict(self.numbers)}
        return self.event.replace(data={"where": operation.where, "uses": [use]})


@dataclass(slots=True)
class OperationLooks:
    """The steps in which one line was looked at.

    Attributes:
        looks: of these steps, in their order.
    """

    looks: list[Look] = field(default_factory=list)

    def enter(self, look: Look) -> None:
        if len(self.looks) >= _LOOKS:
            self.looks.pop()
        self.looks.append(look)

    def values(self, name: str) -> list[float]:
        """A number, of each look that has it."""
        return [look.numbers[name] for look in self.looks if name in look.numbers]


class OperationsSeen(RunState):
    """The functions that a process called, by line.

    Attributes:
        lines: the steps in which each was looked at.
    """

    reads: ClassVar[Needs] = needs_of(OperationUses)

    def __init__(self) -> None:
        self.lines: dict[Operation, OperationLooks] = {}

    def observe(self, event: Event) -> None:
        found = observed(event, OperationUses)
        for use in found.uses if found is not None else ():
            key = Operation(use.look, use.function, use.where, use.of)
            if key not in self.lines and len(self.lines) >= _LINES:
                continue
            line = self.lines.setdefault(key, OperationLooks())
            line.enter(Look(event, use.calls, use.numbers))

    def of(self, *looks: str) -> Iterator[tuple[Operation, OperationLooks]]:
        """The lines at which one of these was looked at."""
        for key, line in self.lines.items():
            if key.look in looks:
                yield key, line
