"""Properties that the experiments of probes show: what must not matter does not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.readings.reading import MANY, EventReader, Reading
from traincheck.relations.property.base import Property
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject
from traincheck.schema.places import short
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Status
from traincheck.schema.probes.words import EXPERIMENTS

_NEEDS = Needs(kinds=frozenset({"probe"}))


def _read(event: Event) -> Iterable[Reading]:
    if not isinstance(event, ProbeEvent) or event.name not in EXPERIMENTS:
        return ()
    if event.status in (Status.NOT_OBSERVABLE, Status.FAILED):
        return ()
    numbers = {"change": 0.0, "ratio": 1.0, "loss": 0.0, "without": 0.0} | dict(event.numbers)
    text = EXPERIMENTS[event.name].seen.format_map(numbers)
    operation = event.detail.get("operation", "").rpartition(".")[2]
    place = short(event.place)
    where = event.where or event.model
    if operation:
        text += f", first in {operation}() of {where}{f' ({place})' if place else ''}"
    elif event.where:
        text += f" ({event.where})"
    if event.detail.get("recomputed"):
        how = "with other random numbers" if event.detail.get("without_state") else "in backward"
        text += f"; segments are recomputed {how}{f' ({place})' if place else ''}"
    if event.detail.get("fill"):
        text += f"; masked scores are set to {event.detail['fill']}, so padding keeps weight"
    at = Subject(module=where)
    return [Reading(event.name, event.model, "", event.status, event, at, text, MANY)]


_READER = partial(EventReader, _read)  # one for all
SHOWN_BY_PROBES = tuple(
    Property(
        name=each.name,
        needs=_NEEDS,
        reader=_READER,
        claims={Status.HELD: each.claim},
        headline=each.headline,
        cause=each.cause,
        fix=each.fix,
        symptom=each.symptom,
    )
    for each in EXPERIMENTS.values()
)
