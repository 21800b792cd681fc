"""The result of a model for one sample depends on the other samples of its batch."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule, line_of
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments

_FIXES = {
    "mean": "Reduce over the feature dimension: x.mean(dim=1, keepdim=True), not x.mean().",
    "sum": "Reduce over the feature dimension: x.sum(dim=1, keepdim=True), not x.sum().",
    "softmax": "Take the softmax over the classes: softmax(x, dim=-1).",
    "view": "Exchange dimensions with x.transpose(1, 2) or x.permute(...), not with view().",
    "reshape": "Exchange dimensions with x.transpose(1, 2) or x.permute(...), not with reshape().",
}


class SamplesMixed(ProbeRule, code="TC001"):
    """samples-mixed: a sample's result depends on the other samples of its batch.

    What it checks:
        In a copy of the process, the model runs in eval mode on a batch of the program. One sample
        is replaced by a copy of another one. The results for all other samples stay the same.

    Why it matters:
        The model gives a sample another result alone than in a batch, and in another batch than in
        this one. The loss falls all the same, and the scores of evaluation depend on the batch
        size.

    Fires on:
        - A mean, softmax or norm over the batch dimension, or over all dimensions.
        - view() or reshape() where dimensions should be exchanged.
        - Attention over the samples.

        - A BatchNorm that is built in forward(), and so never is in eval mode.

        An operation that mixes samples is proven: with its result of the unchanged batch put back,
        the results of the other samples return. If none is, the first one that shows it is named.

    Stays quiet on:
        - Batch norms, which use running statistics in eval mode.
        - Results with a number for each pair of samples, as in contrastive losses.
        - Graphs: matrices of neighbors, lists of edges, rows that are exchanged by an index.
        - Samples that are ranked against each other, as by the capacity of an expert.
        - Batches below three samples, and inputs whose batch dimension is not clear.
        - Differences below 0.02 % of the largest value.

    Fix:
        Name the dimension of each reduction, and let it be no batch dimension. Exchange dimensions
        with transpose() or permute().

    Source:
        https://github.com/datawhalechina/easy-rl/issues/140
    """

    title = "The result for one sample depends on the other samples of its batch"
    likely_cause = (
        "An operation mixes the samples of a batch, such as a mean over all dimensions, a view() "
        "that is to exchange dimensions, or a BatchNorm that is built in forward()."
    )
    fix = (
        "Read what the named operation does along dimension 0. Name the dimension of each "
        "reduction, exchange dimensions with transpose(), and build layers in __init__."
    )
    experiment: ClassVar[str] = Experiments.ROW_MIXING

    def judged(self, event: ProbeEvent) -> Violation:
        operation = event.detail.get("operation", "").rpartition(".")[2]
        others = event.numbers.get("samples", 2) - 1
        moved = f"changing one sample moved the {others:.0f} others by {_share(event):.2g} %"
        is_proven = not event.detail.get("first")
        if operation and is_proven:
            moved += f": {operation}() mixes them in {event.where}{line_of(event)}"
        elif operation:
            moved += f", first in {operation}() of {event.where}{line_of(event)}"
        found = self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.WRONG_VALUE,
            message="the result for one sample depends on the other samples",
            expected="the same results for the other samples",
            observed=moved,
        )
        return replace(found, fix=_FIXES.get(operation, "") if is_proven else "")


def _share(event: ProbeEvent) -> float:
    return 100 * event.numbers.get("change", 0.0)
