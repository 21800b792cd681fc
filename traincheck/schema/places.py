"""The line of the program that a finding points to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from traincheck.schema.events import CallEvent, Event
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.torch_api import Families

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def where(evidence: Iterable[Event]) -> str | None:
    """The first source line in the evidence; lines of the program come before those of packages."""
    places = [
        (str(place), isinstance(event, CallEvent) and event.family == Families.MODULE)
        for event in evidence
        if (place := _place(event))
    ]
    return min(places, key=_remoteness)[0] if places else None


def _place(event: Event) -> str | None:
    """The line of an event. For an experiment, ``where`` is a module."""
    return event.place if isinstance(event, ProbeEvent) else getattr(event, "where", None)


def _remoteness(place: tuple[str, bool]) -> tuple[bool, bool]:
    """Packages come last; a forward pass comes after a more specific line."""
    path, is_forward = place
    return bool(_INSTALLED.search(path)), is_forward
