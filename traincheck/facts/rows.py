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
_HALF = 0.5

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
        "one epoch": "{of} is read once in training",
        "another order": "{of} gives its rows in another order in each epoch of training",
        "the same order": "{of} gives the same rows in the same order in each of {epochs:epoch} of "
        "training, as far as batches are recorded",
        "other rows": "{of} gives other rows in each epoch of training",
    },
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
        batches: the rows of those that have them, by place.
    """

    is_evaluation: bool = False
    rows: list[str] = field(default_factory=list)
    is_whole: bool = True
    batches: dict[int, list[str]] = field(default_factory=dict)
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
            if event.samples or rows:
                one.batches[event.index] = [*(event.samples or rows)]
            one.count += len(rows)
            one.repeated += len(rows) - len(set(rows))
            self._stored += len(rows) + len(event.samples)

    def facts(self) -> Iterator[Fact]:
        loaders: dict[tuple[str, bool], _Loader] = {}
        for (name, _), one in self._passes.items():
            size, most = self._sizes[name]
            loader = loaders.setdefault((name, one.is_evaluation), _Loader(size=size, most=most))
            loader.passes.append(one)
        for (name, is_evaluation), loader in loaders.items():
            if loader.rows >= _ENOUGH:
                yield _repeated(name, loader)
            if loader.rows >= _ENOUGH and not is_evaluation:
                yield from _order(name, loader)
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


def _order(name: str, loader: _Loader) -> Iterator[Fact]:
    values = {"epochs": len(loader.passes)}
    if len(loader.passes) == 1:
        yield Fact(kind=ORDER.name, of=name, seen_as="one epoch", values=values)
        return
    whole = [one.rows for one in loader.passes if one.is_whole and len(one.rows) >= _ENOUGH]
    seen_as = _order_of_epochs(whole) if len(whole) > 1 else _order_of_batches(loader.passes)
    if seen_as:
        yield Fact(kind=ORDER.name, of=name, seen_as=seen_as, values=values)


def _order_of_epochs(epochs: list[list[str]]) -> str:
    """How two epochs compare of which all rows are recorded."""
    length = min(map(len, epochs))
    first, second = epochs[0][:length], epochs[1][:length]
    if first == second:
        return "the same order"
    common = len(set(first) & set(second)) / len(set(first))
    return "another order" if common > _HALF else "other rows"


def _order_of_batches(passes: list[_Pass]) -> str | None:
    """How epochs compare of which some batches are recorded; None where too few are.

    Of the rows of a later epoch, as many are known from the first one as it has recorded ones.
    """
    first, *others = passes
    same = compared = known = rows = 0
    for other in others:
        for place, batch in other.batches.items():
            earlier = first.batches.get(place)
            if earlier is not None:
                compared += len(batch)
                same += len(batch) if earlier == batch else 0
            rows += len(batch)
            known += len(first.known.intersection(batch))
    if compared < _ENOUGH or not first.drawn:
        return None
    if same == compared:
        return "the same order" if len(first.batches) > 1 else None  # else all data is one batch
    recorded = sum(map(len, first.batches.values())) / first.drawn
    return "another order" if known / rows > _HALF * recorded else "other rows"


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
