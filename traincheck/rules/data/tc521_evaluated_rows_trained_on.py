"""An evaluation reads rows that were trained on, from data that is not the training data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from traincheck.readings.delivered_rows import EvaluatedRows, RowsOfTraining
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER
from traincheck.schema.claims import BATCH_ROWS, Needs
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.places import short
from traincheck.schema.torch_api import DDP_INIT, Families

_FEWEST, _SHARE, _ALL = 8, 0.02, 0.95  # shared rows, and their share of the evaluated ones
_CLEAN = 16  # evaluated rows of other data of which none was trained on
_CHANCE = 4  # times as many as equal rows by chance explain
_UNLIKELY = 1e-4
_BOTH = 0.5  # share of rows that also come with their parts exchanged


class EvaluatedRowsTrainedOn(BuiltInRule, code="TC521"):
    """evaluated-rows-trained-on: an evaluation reads rows that training has read before.

    What it checks:
        The rows of a data set that is evaluated do not come in training before, on this rank or on
        another rank that trains the same model. Rows are compared over all of their tensors, in any
        order.

    Why it matters:
        The metric counts what the model has memorized. It is too good, and it selects the wrong
        checkpoint and the wrong settings.

    Fires on:
        Eight such rows and 2 % of the recorded rows of an evaluation, for instance:

        - Training and validation data cut from two different shuffles.
        - random_split with another seed on each rank.
        - Pairs that are in both sets, with their two ids exchanged.

    Stays quiet on:
        - An evaluation of the training data: with the training loader, over the same arrays or
          a Subset of them, over data of the same size or larger, or where all rows were trained on.
        - A copy of a part of the training data that is evaluated beside held-out data.
        - Rows that were evaluated before they were trained on.
        - Cross-validation: each optimizer, and each model that is loaded and trained on, begins
          another training.
        - Data that repeats its rows.
        - Batches whose rows are not the samples that the sampler drew, such as nodes of a graph.
        - Models that are not trained, such as an average of weights, and streams.

    Fix:
        Split the data once, with one seed, before anything else draws from it, and by what
        identifies a sample.

    Source:
        https://scikit-learn.org/stable/common_pitfalls.html#data-leakage,
        https://github.com/BatteryDEV/AutoECM/issues/13
    """

    title = "Rows that {variables} delivers to evaluation were trained on"
    likely_cause = (
        "Training and evaluation data overlap: they are cut from different shuffles, or a sample "
        "is in the data more than once."
    )
    fix = (
        "Split the data once, with one seed, and check that the two sets have no sample in common."
    )
    scope = "run"
    needs = BATCHES | Needs(
        calls=frozenset({Families.MODULE, DDP_INIT}),
        kinds=frozenset({"optimizer", "checkpoint"}),
        states=frozenset({BATCH_ROWS}),
    )
    _ranks: dict[int, _Rank] = fresh(lambda: defaultdict(_Rank))
    _wrapped: set[int] = fresh(set)

    def observe(self, event: Event) -> list[Violation]:
        rank = self._ranks[event.rank]
        if isinstance(event, CallEvent):
            if event.api == DDP_INIT:
                self._wrapped.add(event.rank)
            else:
                rank.rows.call(event)
        elif isinstance(event, BatchEvent):
            return self._next(event.rank, event)
        elif isinstance(event, StepEvent):
            rank.has_gap |= not event.recorded
        elif isinstance(event, OptimizerEvent) and event.change == "created":
            found = [*self._next(event.rank, None), *self._told(self._judged(event.rank))]
            rank.begin()
            return found
        elif isinstance(event, CheckpointEvent) and event.op == "load_state_dict":
            found = self._next(event.rank, None)
            rank.at_load = self._judged(event.rank)
            return found
        return []

    def finish(self) -> list[Violation]:
        for rank in self._ranks:
            self._next(rank, None)  # judged with all batches of all ranks
        return [one for rank in sorted(self._ranks) for one in self._told(self._judged(rank))]

    def _next(self, number: int, batch: BatchEvent | None) -> list[Violation]:
        """Enter the last batch of a rank as trained on or evaluated, and begin another."""
        rank = self._ranks[number]
        same = self._wrapped if number in self._wrapped else set()
        others = {other: self._ranks[other].rows for other in same if other != number}
        self.triggered += rank.rows.evaluate(others)
        trained = rank.rows.next(batch)
        found: list[Violation] = []
        if trained is not None:
            if rank.at_load is not None:
                # Training goes on with other weights, which may not have seen the rows
                found = self._told(rank.at_load)
                rank.begin(batch)
            rank.rows.train(trained)
        return found

    def _told(self, found: Iterable[Violation]) -> list[Violation]:
        """Of these, the first of each loader."""
        new = []
        for one in found:
            if one.subject.variable not in self.reported:
                self.reported.add(one.subject.variable)
                new.append(one)
        return new

    def _judged(self, number: int) -> list[Violation]:
        rank = self._ranks[number]
        if rank.has_gap:
            return []
        found = []
        for of, evaluated in rank.rows.evaluated.items():
            if {of, evaluated.batch.part_of} & rank.rows.data.keys() or not _is_smaller(
                evaluated, rank.rows
            ):
                continue
            other = number
            if not evaluated.shared and _would_be_seen(evaluated):
                seen = {rank: len(rows) for rank, rows in evaluated.elsewhere.items()}
                other = max(seen, key=lambda one: seen[one], default=number)
            trained = self._ranks[other].rows
            shared = evaluated.shared if other == number else evaluated.elsewhere[other]
            exchanged = _exchanged(evaluated, trained) if other == number else set()
            count = len((shared | exchanged) - trained.doubled)
            if _is_odd(evaluated, count, trained) and (
                other != number or not _is_deliberate(of, count, trained)
            ):
                is_exchanged = len(exchanged) > len(shared)
                found.append(self._violation(evaluated, count, other, is_exchanged))
        return found

    def _violation(
        self, found: EvaluatedRows, number: int, other: int, is_exchanged: bool
    ) -> Violation:
        batch, forward = found.batch, found.forward
        line = f" (evaluated at {short(forward.where)})" if forward.where else ""
        reader, trainer, cause, fix = batch.loader, "training", "", ""
        if other != batch.rank:
            reader, trainer = f"{reader} of rank {batch.rank}", f"the training of rank {other}"
            cause = (
                "Each rank splits the data differently, for instance by random_split with another "
                "seed on each rank."
            )
            fix = "Give the split a generator that has the same seed on all ranks."
        elif is_exchanged:
            trainer = "training, with their parts exchanged,"
            cause = (
                "The data hold each pair in both orders, and the split is drawn over these rows, "
                "so that most evaluated pairs are trained on the other way round."
            )
            fix = "Split the pairs first, each once, and add the other order to the training part."
        return self.violation(
            batch,
            stage=EVAL_STAGE,
            subject=Subject(api=DATA_LOADER, variable=batch.loader),
            symptom=Symptom.REPEATED_DATA,
            message=f"rows that {reader} delivers to evaluation came in {trainer} before{line}",
            expected="no evaluated row is trained on",
            observed=f"{number} of {len(found.rows)} recorded rows of the evaluation "
            f"({number / len(found.rows):.0%}) were trained on, and not all rows of training are "
            "recorded",
            likely_cause=cause,
            fix=fix,
            evidence=(batch, forward),
        )


@dataclass(slots=True)
class _Rank:
    """One rank.

    Attributes:
        at_load: what was found when a state was loaded last, since which nothing was trained.
    """

    rows: RowsOfTraining = field(default_factory=RowsOfTraining)
    has_gap: bool = False
    at_load: list[Violation] | None = None

    def begin(self, batch: BatchEvent | None = None) -> None:
        """Begin another training, with this batch."""
        models = self.rows.models
        self.rows, self.at_load = RowsOfTraining(models=models), None
        self.rows.next(batch)


def _is_smaller(found: EvaluatedRows, trained: RowsOfTraining) -> bool:
    """Whether the evaluated data are not all data, or the training data read again."""
    sizes = trained.data.values()
    return not (found.size and all(sizes)) or found.size < sum(sizes)


def _would_be_seen(found: EvaluatedRows) -> bool:
    """Whether evaluated rows would have been seen in the training of this rank."""
    share = found.share_seen
    return share is not None and (1 - share) ** len(found.rows) < _UNLIKELY


def _exchanged(found: EvaluatedRows, trained: RowsOfTraining) -> set[str]:
    """Rows trained on with their parts exchanged, if the data hold most rows in both orders.

    Else ids of two kinds, such as user and item, are equal by chance.
    """
    rows, share = found.exchanged - found.shared, trained.share_seen
    is_most = share is not None and len(rows) >= _BOTH * share * len(found.rows)
    return rows if is_most else set()


def _is_odd(found: EvaluatedRows, number: int, trained: RowsOfTraining) -> bool:
    """Whether so many shared rows are more than chance gives, and not all of the rows."""
    rows = len(found.rows)
    chance = trained.expected_by_chance(rows)
    return number >= max(_FEWEST, _CHANCE * chance, _SHARE * rows) and number < _ALL * rows


def _is_deliberate(of: str, number: int, trained: RowsOfTraining) -> bool:
    """Whether a part of the training data may be evaluated beside data that are held out."""
    rows = len(trained.evaluated[of].rows)
    if any(
        len(other.rows) >= _CLEAN and not other.shared
        for name, other in trained.evaluated.items()
        if name != of
    ):
        share = trained.evaluated[of].share_seen
        return share is None or _at_most(number, rows, share) > _UNLIKELY
    return False


def _at_most(number: int, rows: int, share: float) -> float:
    """How likely at most so many of the rows were recorded, if each was trained on."""
    return sum(math.comb(rows, k) * share**k * (1 - share) ** (rows - k) for k in range(number + 1))
