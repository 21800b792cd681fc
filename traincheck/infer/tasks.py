"""Share passes over runs among processes. Results come back in one order, whoever made them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from traincheck.schema.claims import Hypothesis, Invariant, Needs
from traincheck.schema.protocols import EventSource, Relation

T = TypeVar("T")
Progress = Callable[[int, int], None]  # tasks done, tasks there are so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A reference run. source: picklable, when there are to be several jobs."""

    name: str
    source: EventSource


class Workers:
    """Runs a pass over every run, and for each group of relations where jobs outnumber runs."""

    def __init__(
        self,
        runs: Sequence[Run],
        relations: Mapping[str, Relation],
        jobs: int,
        on_progress: Progress | None,
    ) -> None:
        self._runs = runs
        self._groups = _split(relations, -(-jobs // len(runs)))
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(max_workers=jobs, mp_context=context)
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

    def map(self, task: Callable[..., T], *args: Any) -> Iterator[tuple[int, T]]:
        """Index of the run and result, by run, then by group of relations.

        Args:
            task: called with a source, relations, and ``args``.
            args: claims and invariants among them are left to the relations of the group.
        """
        calls = [
            (index, (run.source, group, *(_part(arg, group) for arg in args)))
            for index, run in enumerate(self._runs)
            for group in self._groups
        ]
        self._total += len(calls)
        if self._pool is None:
            for index, call in calls:
                yield index, self._count(task(*call))
            return
        futures = [(index, self._pool.submit(task, *call)) for index, call in calls]
        for index, future in futures:
            yield index, self._count(future.result())

    def _count(self, result: T) -> T:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)
        return result


def _split(relations: Mapping[str, Relation], parts: int) -> list[dict[str, Relation]]:
    names = sorted(relations)
    groups: list[dict[str, Relation]] = [{} for _ in range(max(1, min(parts, len(names))))]
    for position, name in enumerate(names):
        groups[position % len(groups)][name] = relations[name]
    return groups


def _part(arg: Any, group: Mapping[str, Relation]) -> Any:
    """The claims or invariants of these relations; anything else as it is."""
    if isinstance(arg, Mapping):
        return {k: v for k, v in arg.items() if _relation_of(v) in group}
    if isinstance(arg, Needs):
        return arg
    return [v for v in arg if _relation_of(v) in group]


def _relation_of(value: Hypothesis | Invariant) -> str:
    return value.relation if isinstance(value, Hypothesis) else value.hypothesis.relation
