"""The result for a sample depends on its place in the batch."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule, line_of
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments


class PlaceInBatchMatters(ProbeRule, code="TC003"):
    """place-in-batch-matters: a sample's result depends on its place in the batch.

    What it checks:
        In a copy of the process, the model runs in eval mode on a batch of the program, and on the
        same batch rolled by one sample. Each sample keeps its result.

    Why it matters:
        The model learns something of places in the batch, which mean nothing. Alone, or in another
        batch, a sample gets another result.

    Fires on:
        - A table of positions that is looked up by the row of the batch, not by the place in the
          sequence.
        - A batch in a layer that expects the sequence first.
        - Edges or another index of one sample that is used for the whole batch.
        - Rows that are sorted, and put back for one of two tensors only.

    Stays quiet on:
        - Random numbers that are drawn in eval mode.
        - Inputs whose batch dimension is not clear.
        - Inputs that are the same in each call, as those of one graph.
        - Models that hold a matrix of neighbors or a list of edges for the rows.
        - Models with a state of each row.
        - Differences below 0.1 % of the largest value.

    Fix:
        Index by the dimension of the sequence, give each sample its own offset in an index, and put
        sorted rows back everywhere.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
    """

    title = "The result for a sample depends on its place in the batch"
    likely_cause = (
        "An operation uses the number or the order of the rows: a table that is looked up by row, "
        "an index made for one sample, or rows that were sorted and are not put back everywhere."
    )
    fix = (
        "Read what the named operation does along dimension 0: it must give each row the same "
        "result in any order of the rows."
    )
    experiment: ClassVar[str] = Experiments.BATCH_PLACE

    def judged(self, event: ProbeEvent) -> Violation:
        change = event.numbers.get("change", 0.0)
        text = f"rolling the batch by one sample moved results by {change:.2g} of the largest value"
        operation = event.detail.get("operation", "").rpartition(".")[2]
        if operation:
            text += f", first in {operation}() of {event.where}{line_of(event)}"
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.WRONG_VALUE,
            message="the result for a sample depends on its place in the batch",
            expected="the same result for each sample",
            observed=text,
        )
