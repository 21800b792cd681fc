"""Learn invariants from reference runs: statistics of each run, then one selection for all.

The result does not depend on the order of the runs or on the number of jobs.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeVar

from traincheck.errors import InvariantFormatError, UsageError
from traincheck.infer.coverage import restrict_to_recorded
from traincheck.infer.dropped import Dropped
from traincheck.infer.excerpts import with_excerpts
from traincheck.infer.select import REASONS, InvariantSelector, Limits
from traincheck.infer.statistics import (
    BAD_VALUE,
    RunStatistics,
    distinct_runs,
    merge_runs,
    statistics_of,
)
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Invariant
from traincheck.schema.protocols import EventSource, Relation
from traincheck.schema.words import joined

T = TypeVar("T")
Progress = Callable[[int, int], None]  # runs done, runs there are
Task = Callable[[EventSource, Mapping[str, Relation], str], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A reference run. source: must be picklable if there are several jobs."""

    name: str
    source: EventSource


def map_runs(
    runs: Sequence[Run],
    task: Task[T],
    relations: Mapping[str, Relation],
    jobs: int,
    on_progress: Progress | None,
) -> Iterator[T]:
    """Yield the result of ``task`` for each run. A single run is not split.

    Raises:
        UsageError: a worker process died.
    """
    results: Iterator[T] = (task(run.source, relations, run.name) for run in runs)
    if min(jobs, len(runs)) > 1:
        results = _in_pool(runs, task, relations, min(jobs, len(runs)))
    for done, result in enumerate(results, 1):
        if on_progress is not None:
            on_progress(done, len(runs))
        yield result


def _in_pool(
    runs: Sequence[Run], task: Task[T], relations: Mapping[str, Relation], jobs: int
) -> Iterator[T]:
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [pool.submit(task, run.source, relations, run.name) for run in runs]
        for future in futures:
            yield future.result()
    except BrokenProcessPool as error:
        raise UsageError(
            "a worker process died, perhaps for want of memory", fix="use fewer --jobs"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


__all__ = ["REASONS", "Dropped", "InferResult", "Limits", "infer", "learn_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResult:
    """The learned invariants.

    Attributes:
        invariants: sorted.
        dropped: the other hypotheses, sorted.
        runs: names, sorted.
        hypotheses: number of those tested.
        events: number in all runs.
        steps: number of complete steps in all runs, of one rank of each.
        skipped: number of lines that could not be read.
        statistics: of each run, so that runs can be added later.
    """

    invariants: Sequence[Invariant]
    dropped: Sequence[Dropped]
    runs: Sequence[str]
    hypotheses: int
    events: int
    steps: int
    skipped: int = 0
    statistics: Sequence[RunStatistics] = ()


def infer(
    runs: Sequence[Run],
    *,
    relations: Mapping[str, Relation] | None = None,
    limits: Limits | None = None,
    jobs: int = 1,
    on_progress: Progress | None = None,
    known: Sequence[RunStatistics] = (),
) -> InferResult:
    """Learn what always holds in ``runs``.

    Args:
        runs: reference runs; an invariant must hold in all of them.
        relations: to learn, by name; the default is all.
        limits: what an invariant must reach.
        jobs: processes that share the runs.
        on_progress: called with the number of runs read, and of all.
        known: statistics of further runs, which are not read again.

    Raises:
        UsageError: there is no run.
    """
    if not runs:
        raise UsageError("no run to learn from", fix="give a directory that holds a trace")
    table = dict(RELATIONS if relations is None else relations)
    found = list(map_runs(runs, statistics_of, table, jobs, on_progress))
    return learn_from([*known, *found], relations=table, limits=limits)


def learn_from(
    statistics: Sequence[RunStatistics],
    *,
    relations: Mapping[str, Relation] | None = None,
    limits: Limits | None = None,
) -> InferResult:
    """Learn what always holds in the runs of these statistics; arguments as for `infer`.

    Raises:
        InvariantFormatError: they hold claims of a form that no relation makes.
    """
    try:
        table = dict(RELATIONS if relations is None else relations)
        runs = distinct_runs(statistics)
        selector = InvariantSelector(table, limits or Limits()).select(merge_runs(runs, table))
        return InferResult(
            invariants=with_excerpts(
                restrict_to_recorded(selector.kept, [run.coverage for run in runs]),
                [run.trees for run in runs],
            ),
            dropped=selector.dropped,
            runs=[run.name for run in runs],
            hypotheses=selector.hypotheses,
            events=sum(run.events for run in runs),
            steps=sum(run.steps for run in runs),
            skipped=sum(run.skipped for run in runs),
            statistics=runs,
        )
    except BAD_VALUE as error:
        names = joined([run.name for run in statistics])
        raise InvariantFormatError(
            f"the statistics of {names} hold a claim that no relation makes "
            f"({type(error).__name__}: {error})",
            fix="learn again from the runs; if nothing damaged the statistics, report this error",
        ) from error
