"""A quantity of a run as it was read."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.events import Event
from traincheck.schema.findings import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """One quantity of a run.

    Attributes:
        what: its name in the table.
        under: what it depends on; only runs with the same are compared.
        values: the value, and others of the same run, whose spread widens the band.
        seen: what was observed, as a clause.
        at: what a finding points to.
        event: that shows it.
        of: its owner, such as an optimizer; empty for the run.
    """

    what: str
    under: str
    values: tuple[float, ...]
    seen: str
    at: Subject
    event: Event
    of: str = ""
