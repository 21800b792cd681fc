"""A buffer differs, and what it is computed from does not: running statistics, averages."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is in a buffer."""
    item = evidence.item
    if item.is_opening:
        return None
    is_running = item.name.endswith(_RUNNING)
    if evidence.is_ranks:
        return Explanation(
            code="statistics-per-rank",
            text="each rank keeps the statistics of its samples (broadcast_buffers=False)"
            if is_running
            else "each rank computes this buffer from its samples",
            fix="Use SyncBatchNorm or broadcast_buffers=True, or save the buffers of one rank."
            if is_running
            else "Reduce the buffer over the ranks.",
        )
    if is_running:
        return Explanation(
            code="running-statistics",
            text="the running statistics are updated otherwise: another momentum, mode, or number "
            "of forward passes",
            fix="Compare momentum and the number of forward passes in training mode.",
        )
    return Explanation(
        code="buffer-update",
        text="a buffer is updated otherwise, such as an average of weights or a counter",
        details=(f"{len(evidence.of(Phase.BUFFER))} buffers differ",),
    )
