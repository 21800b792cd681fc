"""A base class of rules about the hyper-parameters in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from traincheck.readings.hyperparameters import IN_FORCE, Course, HyperparametersInForce
from traincheck.readings.provider import Fact, Facts
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families


class InForceRule(BuiltInRule):
    """Judges the hyper-parameters of one process, mostly at its end."""

    uses: ClassVar[Sequence[type[Fact]]] = (HyperparametersInForce,)
    observes: ClassVar[Needs] = Needs()
    needs = IN_FORCE
    ledger: HyperparametersInForce

    def bind(self, facts: Facts) -> None:
        self.ledger = facts.of(HyperparametersInForce)

    def observe(self, event: Event) -> Sequence[Violation]:
        return ()


def line(where: str | None) -> str:
    """`` (train.py:12)``, or nothing."""
    return f" ({short(where)})" if where else ""


def subject(course: Course) -> Subject:
    """The subject of a finding about an optimizer."""
    return Subject(api=Families.OPTIMIZER_STEP, variable=course.made.id)
