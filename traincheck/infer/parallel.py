"""Map runs over processes. Results come in the order of the runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeVar

from traincheck.errors import UsageError
from traincheck.schema.protocols import EventSource, Relation

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
    results = _in_process(runs, task, relations)
    if min(jobs, len(runs)) > 1:
        results = _in_pool(runs, task, relations, min(jobs, len(runs)))
    for done, result in enumerate(results, 1):
        if on_progress is not None:
            on_progress(done, len(runs))
        yield result


def _in_process(
    runs: Sequence[Run], task: Task[T], relations: Mapping[str, Relation]
) -> Iterator[T]:
    for run in runs:
        yield task(run.source, relations, run.name)


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
