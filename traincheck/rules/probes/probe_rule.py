"""The base of rules that judge the results of one experiment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Violation
from traincheck.schema.places import short
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Status


class ProbeRule(BuiltInRule):
    """Judges the experiments of one name. A model that passed one is not reported for another.

    Attributes:
        experiment: the name, one of `Experiments`.
        confirmed: results that show a fault before it is reported; at the end of the run one is
            enough.
    """

    experiment: ClassVar[str]
    confirmed: ClassVar[int] = 1
    needs = Needs(kinds=frozenset({"probe"}))
    _found: dict[str, list[ProbeEvent]] = fresh(dict)
    _held: set[str] = fresh(set)
    _told: set[str] = fresh(set)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, ProbeEvent) or event.name != self.experiment:
            return []
        if event.status in (Status.NOT_OBSERVABLE, Status.FAILED):
            return []
        self.triggered += 1
        if event.status != Status.MOVED or not self.is_fault(event):
            self._held.add(event.model)
            return []
        found = self._found.setdefault(event.model, [])
        found.append(event)
        return self._told_of(event.model) if len(found) >= self.confirmed else []

    def finish(self) -> Sequence[Violation]:
        return [violation for model in self._found for violation in self._told_of(model)]

    def _told_of(self, model: str) -> list[Violation]:
        if model in self._told or (self.confirmed > 1 and model in self._held):
            return []
        self._told.add(model)
        return [self.judged(self._found[model][0])]

    def is_fault(self, event: ProbeEvent) -> bool:
        """Whether the numbers of a result show a fault."""
        return True

    @abstractmethod
    def judged(self, event: ProbeEvent) -> Violation:
        """The violation that the first such result proves."""


def line_of(event: ProbeEvent) -> str:
    """`` (model.py:31)``, or nothing."""
    line = short(event.place)
    return f" ({line})" if line else ""
