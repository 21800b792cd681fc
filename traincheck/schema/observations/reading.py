"""From marks of a trace to typed records. Data of a wrong form is not read.

Analysis alone loads this module.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.observations.base import Observation

_O = TypeVar("_O", bound=Observation)


def observed(event: Event, *kinds: type[_O]) -> _O | None:
    """The observation that an event carries, if it is one of these kinds and well-formed."""
    if not isinstance(event, MarkEvent):
        return None
    for kind in kinds:
        if event.text == kind.text:
            return _read(event, kind)
    return None


def _read(mark: MarkEvent, kind: type[_O]) -> _O | None:
    data = mark.data
    if kind.keys:
        fields = {key: field for field, key in kind.keys.items()}
        data = {fields.get(key, key): value for key, value in data.items()}
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError):
        return None
