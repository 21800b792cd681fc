"""Results that depend on other samples, on the place in the batch, or on later tokens."""

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
        moved = (
            f"changing one sample moved the {others:.0f} others by "
            f"{(100 * event.numbers.get('change', 0.0)):.2g} %"
        )
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


class LaterTokensSeen(ProbeRule, code="TC007"):
    """later-tokens-seen: a model that predicts the next token depends on later ones.

    What it checks:
        The targets of a loss are the tokens of the input one place further. In a copy of the
        process, the second half of each text is exchanged for that of another. The results for the
        first half stay the same.

    Why it matters:
        The model reads the answer. The loss falls far below what is possible, and generation, which
        has no later tokens, is poor.

    Fires on:
        - Attention without a causal mask, or with one that is shifted.
        - Norms, means or convolutions over the sequence.

    Stays quiet on:
        - Other targets, such as masked tokens, classes, or the same tokens.
        - Differences below 0.1 % of the largest value.

    Fix:
        Mask later positions: is_causal=True. Normalize over features, not over the sequence.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html
    """

    title = "A model that predicts the next token sees later tokens"
    likely_cause = (
        "The causal mask may be missing, or a convolution, norm or pooling goes over the sequence."
    )
    fix = (
        "Mask later positions in attention (is_causal=True), pad convolutions on the left, and "
        "normalize over features, not over the sequence."
    )
    experiment: ClassVar[str] = Experiments.LATER_TOKENS

    def judged(self, event: ProbeEvent) -> Violation:
        change = event.numbers.get("change", 0.0)
        text = (
            "changing the second half of each text moved results for the first half by "
            f"{change:.2g} of the largest value"
        )
        operation = event.detail.get("operation", "").rpartition(".")[2]
        if operation:
            text += f", first in {operation}() of {event.where}{line_of(event)}"
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.UNMASKED,
            message="results depend on later tokens",
            expected="results that depend on earlier tokens only",
            observed=text,
        )
