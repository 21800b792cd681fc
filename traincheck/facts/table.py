"""All readers of facts and their kinds. A new reader is a row here."""

from __future__ import annotations

from dataclasses import replace

from traincheck.facts import (
    copies,
    evaluation,
    gradients,
    layers,
    loop,
    operations,
    rows,
    settings,
    signal,
)
from traincheck.facts.kinds import Kinds
from traincheck.facts.reader import FactReader
from traincheck.schema.claims import BATCH_CONTENT, Needs

READERS: tuple[type[FactReader], ...] = (
    *signal.READERS,
    *rows.READERS,
    *loop.READERS,
    *gradients.READERS,
    *layers.READERS,
    *settings.READERS,
    *copies.READERS,
    *evaluation.READERS,
    *operations.READERS,
)
KINDS = Kinds(kind for reader in READERS for kind in reader.kinds)


def needs_of_facts() -> Needs:
    """The events that a recording takes for facts by default: those that cost little.

    Fingerprints of the content of batches are not among them.
    """
    found = Needs()
    for reader in READERS:
        found |= reader.needs
    return replace(found, states=found.states - {BATCH_CONTENT})
