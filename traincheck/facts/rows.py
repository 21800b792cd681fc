"""Rows that loaders deliver: repeated, in which order, how many of the data set, and to whom.

A row is known by the fingerprint of its part of the first tensor of a batch, for up to 64 rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.reader import FactReader
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.facts import Fact
from traincheck.schema.marks import EVAL_STAGE

_ENOUGH = 16  # rows: fewer repeat by chance, or show nothing
_MOST = 200_000  # rows that are remembered of a loader

REPEATED = Kind(
    "rows.repeated in a batch",
    {
        "none": "all rows of each batch of {of} differ",
        "few": "{number} of {rows} rows of {of} occur twice in one batch",
        "many": "{number} of {rows} rows of {of} occur twice in one batch",
        "nearly all": "{number} of {rows} rows of {of} occur twice in one batch",
    },
    unsaid="A sampler with replacement, or a data set of few values, repeats rows by design.",
)
ORDER = Kind(
    "rows.order in each epoch",
    {
        "one epoch": "{of} is read once",
        "another order": "{of} gives its rows in another order in each epoch",
        "the same order": "{of} gives the same rows in the same order in each of {epochs:epoch}",
        "other rows": "{of} gives other rows in each epoch",
    },
    unsaid="Whether they are read for training.",
)
READ = Kind(
    "rows.read of the data set",
    {
        "all": "{of} draws {drawn} of the {size} samples of its data set in an epoch",
        "not the last ones": "{of} draws {drawn} of the {size} samples of its data set in an epoch",
        "a part": "{of} draws {drawn} of the {size} samples of its data set in an epoch",
        "more": "{of} draws {drawn} samples in an epoch; its data set has {size}",
    },
)
SHARED = Kind(
    "rows.evaluated and trained on",
    {
        "no evaluation": "no loader is read in an evaluation",
        "none": "none of {rows} evaluated rows is one that was trained on",
        "few": "{number} of {rows} evaluated rows are rows that were trained on",
        "some": "{number} of {rows} evaluated rows are rows that were trained on",
        "all": "{number} of {rows} evaluated rows are rows that were trained on",
    },
    unsaid="Rows may be equal by chance where they hold few values.",
)


@dataclass(slots=True)
class _Loader:
    """The batches of one loader in one stage."""

    rows: int = 0
    repeated: int = 0
    epochs: dict[int, list[str]] = field(default_factory=dict)
    drawn: Counter[int] = field(default_factory=Counter)
    size: int = 0
    most: int = 0  # samples of a batch


class Rows(FactReader):
    """Follows the batches of loaders."""

    kinds: ClassVar = (REPEATED, ORDER, READ, SHARED)
    needs: ClassVar = Needs(kinds=frozenset({"batch"}), states=frozenset({"batch@content"}))
    observes: ClassVar = Needs(kinds=frozenset({"batch"}))

    def __init__(self) -> None:
        self._loaders: dict[tuple[str, bool], _Loader] = {}

    def observe(self, event: Event) -> None:
        if not isinstance(event, BatchEvent):
            return
        key = event.loader, event.stage == EVAL_STAGE
        loader = self._loaders.setdefault(key, _Loader())
        loader.rows += len(event.samples)
        loader.repeated += len(event.samples) - len(set(event.samples))
        loader.drawn[event.epoch] += event.drawn
        loader.size = max(loader.size, event.dataset_size)
        loader.most = max(loader.most, event.drawn)
        if loader.rows <= _MOST:
            loader.epochs.setdefault(event.epoch, []).extend(event.samples)

    def facts(self) -> Iterator[Fact]:
        for (name, _), loader in self._loaders.items():
            if loader.rows >= _ENOUGH:
                yield _repeated(name, loader)
                yield _order(name, loader)
            if loader.size and len(loader.drawn) > 1:
                yield _read(name, loader)
        if self._loaders:
            yield self._shared()

    def _shared(self) -> Fact:
        trained, evaluated = (
            {
                row
                for (_, is_of_evaluation), loader in self._loaders.items()
                if is_of_evaluation is evaluates
                for rows in loader.epochs.values()
                for row in rows
            }
            for evaluates in (False, True)
        )
        if not evaluated or not trained:
            return Fact(kind=SHARED.name, seen_as="no evaluation")
        number = len(trained & evaluated)
        share = number / len(evaluated)
        seen_as = (
            "none" if not number else "few" if share < 0.05 else "some" if share < 0.95 else "all"  # noqa: PLR2004
        )
        values = {"number": number, "rows": len(evaluated)}
        return Fact(kind=SHARED.name, seen_as=seen_as, values=values)


def _repeated(name: str, loader: _Loader) -> Fact:
    share = loader.repeated / loader.rows
    seen_as = (
        "none" if not share else "few" if share < 0.05 else "many" if share < 0.5 else "nearly all"  # noqa: PLR2004
    )
    values = {"number": loader.repeated, "rows": loader.rows}
    return Fact(kind=REPEATED.name, of=name, seen_as=seen_as, values=values)


def _order(name: str, loader: _Loader) -> Fact:
    epochs = [rows for rows in loader.epochs.values() if len(rows) >= _ENOUGH]
    values = {"epochs": len(epochs)}
    if len(epochs) < 2:  # noqa: PLR2004
        return Fact(kind=ORDER.name, of=name, seen_as="one epoch", values=values)
    length = min(map(len, epochs))
    first, second = epochs[0][:length], epochs[1][:length]
    if first == second:
        seen_as = "the same order"
    else:
        common = len(set(first) & set(second)) / len(set(first))
        seen_as = "another order" if common > 0.5 else "other rows"  # noqa: PLR2004
    return Fact(kind=ORDER.name, of=name, seen_as=seen_as, values=values)


def _read(name: str, loader: _Loader) -> Fact:
    drawn = max(loader.drawn.values())
    seen_as = (
        "more"
        if drawn > loader.size
        else "all"
        if drawn == loader.size
        else "not the last ones"
        if drawn > loader.size - loader.most
        else "a part"
    )
    values = {"drawn": drawn, "size": loader.size}
    return Fact(kind=READ.name, of=name, seen_as=seen_as, values=values)


READERS = (Rows,)
