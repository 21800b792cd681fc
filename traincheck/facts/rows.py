"""Rows that loaders deliver: repeated, in which order, how many of the data set, and to whom.

A row is known by the fingerprint of its part of the first tensor, which all batches of a whole
recording have. Else it is known by those of its parts of all tensors, in any order, so that
exchanged inputs give the same row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.reader import FactReader
from traincheck.readings.delivered_rows import whole_rows
from traincheck.schema.claims import BATCH_ROWS, Needs
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.facts import Fact
from traincheck.schema.marks import EVAL_STAGE

_ENOUGH = 16  # rows: fewer repeat by chance, or show nothing
_MOST = 400_000  # rows that are remembered

REPEATED = Kind(
    "rows.repeated in a batch",
    {
        "none": "all recorded rows of each batch of {of} differ",
        "few": "{number} of {rows} recorded rows of {of} occur twice in one batch",
        "many": "{number} of {rows} recorded rows of {of} occur twice in one batch",
        "nearly all": "{number} of {rows} recorded rows of {of} occur twice in one batch",
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
        "no evaluation": "of no loader are rows of an evaluation and of training recorded",
        "none": "none of {rows} recorded rows of evaluations is a recorded row of training",
        "few": "{number} of {rows} recorded rows of evaluations are rows of training",
        "some": "{number} of {rows} recorded rows of evaluations are rows of training",
        "all": "{number} of {rows} recorded rows of evaluations are rows of training",
    },
    unsaid="Rows may be equal by chance where they hold few values.",
)


@dataclass(slots=True)
class _Pass:
    """One pass over a loader.

    Attributes:
        rows: in order, as far as all batches have them.
    """

    is_evaluation: bool = False
    rows: list[str] = field(default_factory=list)
    is_whole: bool = True
    known: set[str] = field(default_factory=set)
    count: int = 0
    repeated: int = 0
    drawn: int = 0


@dataclass(slots=True)
class _Loader:
    """The passes over one loader in one stage."""

    passes: list[_Pass] = field(default_factory=list)
    size: int = 0
    most: int = 0  # samples of a batch

    @property
    def rows(self) -> int:
        return sum(one.count for one in self.passes)

    @property
    def repeated(self) -> int:
        return sum(one.repeated for one in self.passes)


class Rows(FactReader):
    """Follows the batches of loaders."""

    kinds: ClassVar = (REPEATED, ORDER, READ, SHARED)
    needs: ClassVar = Needs(kinds=frozenset({"batch"}), states=frozenset({BATCH_ROWS}))
    observes: ClassVar = Needs(kinds=frozenset({"batch"}))

    def __init__(self) -> None:
        self._passes: dict[tuple[str, int], _Pass] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._stored = 0

    def observe(self, event: Event) -> None:
        if not isinstance(event, BatchEvent):
            return
        one = self._passes.setdefault((event.loader, event.epoch), _Pass())
        # The first batch of an evaluation is often fetched before anything shows that it is one
        one.is_evaluation |= event.stage == EVAL_STAGE
        one.drawn += event.drawn
        size, most = self._sizes.get(event.loader, (0, 0))
        if not event.replicas:  # else each rank draws its share
            size = max(size, event.dataset_size)
        self._sizes[event.loader] = size, max(most, event.drawn)
        one.is_whole &= bool(event.samples)
        if self._stored <= _MOST:
            one.rows += event.samples
            rows = whole_rows(event)
            one.known.update(event.samples or rows)
            one.count += len(rows)
            one.repeated += len(rows) - len(set(rows))
            self._stored += len(rows) + len(event.samples)

    def facts(self) -> Iterator[Fact]:
        loaders: dict[tuple[str, bool], _Loader] = {}
        for (name, _), one in self._passes.items():
            size, most = self._sizes[name]
            loader = loaders.setdefault((name, one.is_evaluation), _Loader(size=size, most=most))
            loader.passes.append(one)
        for (name, _), loader in loaders.items():
            if loader.rows >= _ENOUGH:
                yield _repeated(name, loader)
            if all(one.is_whole for one in loader.passes) and loader.rows >= _ENOUGH:
                yield _order(name, loader)
            if loader.size and len(loader.passes) > 1:
                yield _read(name, loader)
        if loaders:
            yield self._shared()

    def _shared(self) -> Fact:
        found: dict[bool, set[str]] = {True: set(), False: set()}
        for one in self._passes.values():
            found[one.is_evaluation] |= one.known
        trained, evaluated = found[False], found[True]
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
    epochs = [one.rows for one in loader.passes if one.is_whole and len(one.rows) >= _ENOUGH]
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
    drawn = max(one.drawn for one in loader.passes)
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
