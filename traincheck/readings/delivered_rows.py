"""Rows of batches, as loaders deliver them: each known by the fingerprints of all of its parts.

Also those that a rank trains on, and those that it evaluates after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.schema.events import BatchEvent, CallEvent
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.rows import UNKNOWN, row_prints
from traincheck.schema.torch_api import LOSS_MODULES, Families
from traincheck.schema.values import tensor_summary

_MOST = 100_000  # rows that are stored of a rank
_UPPER = 3.0  # equal pairs that there may be where none was seen: 95 %


def whole_rows(event: BatchEvent) -> list[str]:
    """The recorded rows of a batch whose content is known, over all of its tensors.

    The parts of a row have no order, so that exchanged inputs give the same row.
    """
    if not event.rows:
        return list(event.samples)
    return [_unordered(row) for row in _rows(event)]


def samples_of(event: BatchEvent) -> list[str]:
    """The same in their order, where each row is one sample that the sampler drew; else none.

    A batch of nodes, or of the tokens of several samples, has another number of rows.
    """
    first = next(iter(event.rows), None)
    leaf = None if first is None else tensor_summary(event.leaves.get(first))
    if leaf is None or not leaf.shape or leaf.shape[0] != event.drawn:
        return []
    return [" ".join(row) for row in _rows(event)]


def _rows(event: BatchEvent) -> Iterator[Sequence[str]]:
    rows = zip(*map(row_prints, event.rows.values()))
    return (row for row in rows if UNKNOWN not in row)


def _unordered(row: Iterable[str]) -> str:
    return " ".join(sorted(row))


@dataclass(slots=True)
class EvaluatedRows:
    """The evaluated rows of one data set.

    Attributes:
        batch, forward: the first evaluated batch, and the call of a model that got it.
        rows: those that were evaluated after training began.
        shared: of these, rows that were trained on before.
        exchanged: others that were trained on before with their parts in another order.
        elsewhere: as shared, for each other rank.
        size: of the data set; 0 if not known.
        share_seen: of the training data when it was evaluated first.
    """

    batch: BatchEvent
    forward: CallEvent
    rows: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    exchanged: set[str] = field(default_factory=set)
    elsewhere: dict[int, set[str]] = field(default_factory=dict)
    size: int = 0
    share_seen: float | None = None


@dataclass(slots=True)
class _Pass:
    """The last pass over a data set for training: its loader and epoch, and its rows."""

    of: tuple[str, int]
    rows: set[str] = field(default_factory=set)


@dataclass(slots=True)
class RowsOfTraining:
    """The rows that one rank trains on and evaluates, since its last optimizer was created.

    A batch is trained on if a backward pass follows it, and evaluated if a trained model gets it in
    evaluation mode or without gradients. Where both follow, as with a teacher, or with an
    evaluation within a step, nothing is concluded.

    Attributes:
        trained: rows that were trained on.
        doubled: of these, rows that came twice in one pass.
        data: the data sets that are trained on, each with its size; 0 if not known.
        evaluated: by data set.
        models: names of the outermost modules that are trained.
    """

    models: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    doubled: set[str] = field(default_factory=set)
    data: dict[str, int] = field(default_factory=dict)
    evaluated: dict[str, EvaluatedRows] = field(default_factory=dict)
    _batch: BatchEvent | None = None
    _is_trained: bool = False
    _is_evaluated: bool = False
    _forward: CallEvent | None = None
    _called: set[str] = field(default_factory=set)
    _unordered: set[str] = field(default_factory=set)
    _passes: dict[str, _Pass] = field(default_factory=dict)
    _pairs: int = 0
    _equal: int = 0

    def call(self, event: CallEvent) -> None:
        """Enter a call of a model, or a backward pass."""
        if (event.family or event.api) == Families.BACKWARD:
            self._is_trained = True
            self.models |= self._called
            self._called.clear()
        elif event.root and event.module and not event.api.startswith(LOSS_MODULES):
            if event.training and event.grad_enabled:
                self._called.add(event.module)
                return
            self._is_evaluated = True
            if self._forward is None and event.module in self.models:
                self._forward = event

    def next(self, batch: BatchEvent | None) -> BatchEvent | None:
        """Begin a batch, or none. Returns the one before it, if that one was trained on.

        Evaluated rows are entered by `evaluate` before.
        """
        before, is_trained = self._batch, self._is_trained and not self._is_evaluated
        self._batch, self._forward = batch, None
        self._is_trained = self._is_evaluated = False
        if before is None or not is_trained or before.stage == EVAL_STAGE:
            return None
        return before

    def train(self, batch: BatchEvent) -> None:
        """Enter the rows of a batch as trained on."""
        of = batch.dataset or batch.loader
        self.data[of] = max(self.data.get(of, 0), batch.dataset_size)
        if len(self.trained) > _MOST:
            return
        rows, key = samples_of(batch), (batch.loader, batch.epoch)
        last = self._passes.get(of)
        if last is None or last.of != key:
            last = self._passes[of] = _Pass(key)
        for row in rows:
            self._pairs += len(last.rows)
            if row in last.rows:
                self._equal += 1
                self.doubled.add(row)
            last.rows.add(row)
        self.trained.update(rows)
        for row in rows:
            unordered = _unordered(row.split())
            self._unordered.add(row if unordered == row else unordered)

    def evaluate(self, others: Mapping[int, RowsOfTraining]) -> bool:
        """Enter the rows of the present batch, if it was evaluated; returns whether it was.

        others: the same of other ranks that train the same model.
        """
        batch, forward = self._batch, self._forward
        if batch is None or forward is None or self._is_trained or not self.trained:
            return False
        of = batch.dataset or batch.loader
        found = self.evaluated.get(of)
        if found is None:
            share = self.share_seen
            found = self.evaluated[of] = EvaluatedRows(batch, forward, share_seen=share)
        found.size = max(found.size, batch.dataset_size)
        rows = set(samples_of(batch))
        found.rows |= rows
        found.shared |= rows & self.trained
        new = rows - found.shared
        found.exchanged |= {row for row in new if _unordered(row.split()) in self._unordered}
        for rank, other in others.items():
            found.elsewhere.setdefault(rank, set()).update(rows & other.trained)
        return bool(rows)

    def expected_by_chance(self, rows: int) -> float:
        """At most how many of so many other rows equal a trained one, as these repeat."""
        likely = (self._equal + _UPPER) / max(self._pairs, 1)
        return likely * rows * len(self.trained)

    @property
    def share_seen(self) -> float | None:
        """The share of the data set whose rows were recorded in training; None if unknown."""
        size = sum(self.data.values())
        known = size and all(self.data.values())
        return min(len(self.trained) / size, 1.0) if known else None
