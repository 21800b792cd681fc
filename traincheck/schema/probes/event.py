"""The event of one experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from traincheck.schema.record import EventBase


class ProbeEvent(EventBase, frozen=True, kw_only=True, tag="probe"):
    """The result of one experiment on a copy of the process. ``step`` is the step it was made in.

    The process that trains measures; rules judge what was measured.

    Attributes:
        name: of the experiment, one of `Experiments`.
        model: name of the model that is called first, ``Net``.
        status: "held"; "moved" if what must not matter did; "not_observable"; "failed" by a bug in
            traincheck.
        reason: why it is not observable, as a clause, or how it failed; empty otherwise.
        numbers: what was measured. Only finite numbers.
        where: path of the first module that shows it, ``Net.head``; empty if none is known.
        place: ``file:line`` of the user's code that shows it; empty if none is known.
        detail: what belongs to it, as text.
    """

    kind: ClassVar[Literal["probe"]] = "probe"
    name: str
    model: str = ""
    status: str = "held"
    reason: str = ""
    numbers: Mapping[str, float] = {}
    where: str = ""
    place: str = ""
    detail: Mapping[str, str] = {}
