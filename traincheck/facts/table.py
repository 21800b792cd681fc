"""All readers of facts and their kinds. A new reader is a row here."""

from __future__ import annotations

from traincheck.facts import (
    copies,
    evaluation,
    gradients,
    layers,
    loop,
    operations,
    passes,
    row_kinds,
    rows,
    settings,
    signal,
)
from traincheck.facts.kinds import Kinds
from traincheck.facts.reader import FactReader
from traincheck.schema.claims import Needs

READERS: tuple[type[FactReader], ...] = (
    *signal.READERS,
    *rows.READERS,
    *loop.READERS,
    *gradients.READERS,
    *passes.READERS,
    *layers.READERS,
    *settings.READERS,
    *copies.READERS,
    *evaluation.READERS,
    *operations.READERS,
    *row_kinds.READERS,
)
KINDS = Kinds(kind for reader in READERS for kind in reader.kinds)


def needs_of_facts() -> Needs:
    """All that a trace must hold for these facts."""
    found = Needs()
    for reader in READERS:
        found |= reader.needs
    return found
