"""The facts of a sequence of events, without rules."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.check.engine import Engine, watch
from traincheck.facts.table import READERS
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact


def facts_of(events: Iterable[Event]) -> list[Fact]:
    """The facts of a run from its events, in the order of the trace."""
    engine = Engine(followers=READERS)
    watch(engine, events)
    return engine.facts()
