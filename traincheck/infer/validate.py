"""Last pass: replay a run through the engine that checks, in full and as a selective view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traincheck.check.engine import Engine
from traincheck.infer.view import selective
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.findings import Report, Verdict
from traincheck.schema.protocols import EventSource, Relation


def broken_by(
    source: EventSource,
    relations: Mapping[str, Relation],
    invariants: Sequence[Invariant],
    needs: Needs,
) -> dict[str, str]:
    """Id of each invariant that a reference run breaks, or does not let be decided -> how.

    Args:
        source: the run.
        relations: by name, those of the invariants.
        invariants: to replay.
        needs: what selective collection would record: also what other invariants need.
    """
    full = Engine(invariants, (), relations)
    less = Engine(invariants, (), relations)
    for event in source.events():
        full.observe(event)
        kept = selective(event, needs)
        if kept is not None:
            less.observe(kept)
    return {
        **_broken(less.finish(), "the selective view"),
        **_broken(full.finish(), "replay"),
    }


def _broken(report: Report, where: str) -> dict[str, str]:
    words = {
        Verdict.VIOLATED: f"broken in {where}",
        Verdict.NOT_OBSERVABLE: f"not observable in {where}",
    }
    return {id_: words[v] for id_, v in report.verdicts.items() if v in words}
