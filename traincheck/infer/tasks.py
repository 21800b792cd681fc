"""Share passes over runs among processes. Results come back in one order, whoever made them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from traincheck.errors import UsageError
from traincheck.schema.protocols import EventSource, Relation

T = TypeVar("T")
Progress = Callable[[int, int], None]  # tasks done, tasks there are so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A reference run. source: picklable, when there are to be several jobs."""

    name: str
    source: EventSource


class Workers:
    """Makes a pass over every run. Sharing one run would have it read more than once."""

    def __init__(
        self,
        runs: Sequence[Run],
        relations: Mapping[str, Relation],
        jobs: int,
        on_progress: Progress | None,
    ) -> None:
        self._runs = runs
        self._relations = relations
        self._pool: ProcessPoolExecutor | None = None
        workers = min(jobs, len(runs))
        if workers > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(max_workers=workers, mp_context=context)
        self._on_progress = on_progress
        self._done = self._total = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, task: Callable[..., T], *args: Any) -> Iterator[T]:
        """What ``task`` returns for each run, called with its source, the relations and ``args``.

        Raises:
            UsageError: a worker process died.
        """
        self._total += len(self._runs)
        if self._pool is None:
            for run in self._runs:
                yield self._count(task(run.source, self._relations, *args))
            return
        futures = [
            self._pool.submit(task, run.source, self._relations, *args) for run in self._runs
        ]
        for future in futures:
            try:
                result = future.result()
            except BrokenProcessPool as error:
                raise UsageError(
                    "a worker process died, perhaps for want of memory", fix="use fewer --jobs"
                ) from error
            yield self._count(result)

    def _count(self, result: T) -> T:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)
        return result
