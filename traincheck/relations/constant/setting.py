"""A setting of a program: values, and what they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    MarkEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject

ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED = "arguments", "batch", "between", "equal", "evaluated"
HYPER, KEPT, MODES, SAMPLES, USED = "hyper", "kept", "modes", "samples", "used"
KINDS = frozenset({ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED, HYPER, KEPT, MODES, SAMPLES, USED})
TENSORS = "tensors"  # among the arguments: the names of those that are tensors


class Key(NamedTuple):
    """The owner of values: the calls of an API in one mode, an optimizer, the program."""

    kind: str
    name: str = ""
    training: bool | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """Values by name, as found at one event."""

    key: Key
    values: Mapping[str, Any]
    event: CallEvent | StepEvent | BatchEvent | MarkEvent
    subject: Subject = field(default_factory=Subject)
