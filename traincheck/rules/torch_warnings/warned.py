"""A base class of rules that look warnings up in a table. Subclasses define the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import structs

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, MarkEvent, WarningEvent
from traincheck.schema.findings import Subject, Symptom, Topic, Violation
from traincheck.schema.torch_api import Families

WARNINGS = Needs(calls=frozenset({Families.SCALER_STEP}), kinds=frozenset({"warning", "step"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A warning that indicates a fault.

    Attributes:
        name: of the fault.
        text: a regular expression that is searched in the message.
        topic: of its violations.
        in_training: harmless in evaluation.
        unless_scaled: wrong when GradScaler skips a step.
        unless_at: a regular expression that is searched in the file of the warning; a match means
            that the file is not part of the program.
        in_group: wrong where the program has one rank.
    """

    name: str
    text: str
    title: str
    cause: str
    fix: str
    topic: Topic | None = None
    in_training: bool = False
    unless_scaled: bool = False
    unless_at: str | None = None
    in_group: bool = False


class WarningRule(BuiltInRule):
    """Looks each warning up in a table."""

    known: ClassVar[Sequence[Known]]
    speaker: ClassVar[str] = "torch"
    needs = WARNINGS
    _is_scaled = False
    _ranks = 1

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            self._is_scaled = True
        elif isinstance(event, MarkEvent):
            self._ranks = max(self._ranks, event.world_size or 1)
        if not isinstance(event, WarningEvent):
            return []
        self.triggered += 1
        known = next((k for k in self.known if re.search(k.text, event.text)), None)
        if known is None or (known.in_training and event.stage == "eval"):
            return []
        if known.in_group and self._ranks == 1:
            return []
        if known.unless_scaled and self._is_scaled:
            return []
        if known.unless_at is not None and re.search(known.unless_at, event.where or ""):
            return []
        if event.caller is not None:  # the line in the library says less
            event = structs.replace(event, where=event.caller)
        text = " ".join(event.text.split())
        return self.found(
            event,
            subject=Subject(api=known.name),
            symptom=Symptom.WARNED,
            topic=known.topic,
            message=f"{self.speaker} warns: {text}",
            expected="no such warning",
            observed=text,
            title=known.title,
            likely_cause=known.cause,
            fix=known.fix,
        )
