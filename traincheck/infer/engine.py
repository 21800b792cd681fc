"""Learn invariants from reference runs: the statistics of each run, then one decision about all.

Writes and prints nothing. The result does not depend on the order of runs or the number of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincheck.errors import InvariantFormatError, UsageError
from traincheck.infer.decide import REASONS, Decision, Limits
from traincheck.infer.dropped import Dropped
from traincheck.infer.excerpts import with_excerpts
from traincheck.infer.recorded import as_recorded
from traincheck.infer.statistics import BAD_VALUE, RunStatistics, distinct, merged, statistics_of
from traincheck.infer.tasks import Progress, Run, each
from traincheck.relations.registry import RELATIONS
from traincheck.schema.claims import Invariant
from traincheck.schema.protocols import Relation
from traincheck.schema.words import joined

__all__ = ["REASONS", "Dropped", "InferResult", "Limits", "infer", "learn_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResult:
    """What was learned.

    runs: names, sorted. hypotheses: how many were tested. events, steps: in all runs, steps
    complete and of one rank of each. skipped: lines that could not be read. statistics: of each
    run, to add runs to later.
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
        on_progress: told how many of how many runs are read.
        known: statistics of further runs, which are not read again.

    Raises:
        UsageError: there is no run.
    """
    if not runs:
        raise UsageError("no run to learn from", fix="give a directory that holds a trace")
    table = dict(RELATIONS if relations is None else relations)
    found = list(each(runs, statistics_of, table, jobs, on_progress))
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
        return _learn_from(statistics, relations, limits)
    except BAD_VALUE as error:
        names = joined([run.name for run in statistics])
        raise InvariantFormatError(
            f"the statistics of {names} hold a claim that no relation makes "
            f"({type(error).__name__}: {error})",
            fix="learn again from the runs; if nothing damaged the statistics, report this error",
        ) from error


def _learn_from(
    statistics: Sequence[RunStatistics],
    relations: Mapping[str, Relation] | None,
    limits: Limits | None,
) -> InferResult:
    table = dict(RELATIONS if relations is None else relations)
    runs = distinct(statistics)
    decision = Decision(table, limits or Limits()).about(merged(runs, table))
    return InferResult(
        invariants=with_excerpts(
            as_recorded(decision.kept, [run.vocabulary for run in runs]),
            [run.trees for run in runs],
        ),
        dropped=decision.dropped,
        runs=[run.name for run in runs],
        hypotheses=decision.hypotheses,
        events=sum(run.events for run in runs),
        steps=sum(run.steps for run in runs),
        skipped=sum(run.skipped for run in runs),
        statistics=runs,
    )
