"""Targets in the encoding of another loss."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from traincheck.readings import recorded
from traincheck.readings.losses import CROSS_ENTROPY, F, as_loss, given, loss_needs, number
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_summary, tensors_in

# Effect of a target of zero
_OF_ZERO = {
    f"{F}cosine_embedding_loss": "pairs with a target of 0 are ignored",
    f"{F}margin_ranking_loss": "pairs with a target of 0 are ignored",
    f"{F}soft_margin_loss": "samples with a target of 0 are ignored",
    f"{F}hinge_embedding_loss": (
        "a target of 0 requires a distance that is small and large at once"
    ),
}
_PROOF = 3  # losses: the labels of a few samples may be coincidence


class ZeroLabelInMarginLoss(EventRule, code="TC334", aliases=("labels-of-zero",)):
    """zero-label-in-margin-loss: a loss that expects targets of -1 and 1 is given 0 and 1.

    What it checks:
        Targets of cosine_embedding_loss, margin_ranking_loss, soft_margin_loss and
        hinge_embedding_loss are -1 and 1, not 0 and 1.

    Why it matters:
        These losses multiply by the target, or compare it with 1 and -1. A pair with a target of 0
        has no gradient (in hinge_embedding_loss, it has that of both kinds). Nothing is learned
        from the half of the data that is to be separated, or ranked the other way. The loss falls
        all the same, and the easiest solution makes all pairs alike.

    Fires on:
        - Three losses of training whose targets range from exactly 0 to exactly 1, if no target was
          below 0.

    Stays quiet on:
        - Targets of -1 and 1, also with some of 0 for ties.
        - Targets that are all 0 or all 1.
        - reduction="none".
        - Losses without gradients.

    Fix:
        Pass 2 * target - 1.

    Source:
        https://github.com/seathiefwang/RankPose/issues/4
    """

    title = "{subject} is given targets of 0 and 1 in place of -1 and 1"
    likely_cause = (
        "{observed}: the targets may belong to another loss, or be bools converted to numbers."
    )
    fix = "Pass 2 * target - 1 as target."
    needs = loss_needs(*_OF_ZERO)
    _seen: dict[str, _Seen] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        call = as_loss(event, _OF_ZERO)
        if call is None or call.args.get("reduction", "mean") == "none":
            return []
        result, target = tensor_summary(call.result), given(call, "target")
        low, high = number(target, "min"), number(target, "max")
        if low is None or high is None or (result is not None and not result.requires_grad):
            return []
        self.triggered += 1
        seen = self._seen.setdefault(call.api, _Seen(call))
        seen.is_over |= low < 0
        if seen.is_over or (low, high) != (0, 1):
            return []
        seen.first = call if seen.count == 0 else seen.first
        seen.count += 1
        if seen.count < _PROOF:
            return []
        seen.is_over = True
        function = call.api.rpartition(".")[2]
        return [
            loss_violation(
                self.code,
                seen.first,
                f"{function} is given targets of 0 and 1: {_OF_ZERO[call.api]}",
                expected="targets of -1 and 1",
                observed="targets from 0 to 1",
            )
        ]


@dataclass(slots=True)
class _Seen:
    """Losses with targets from 0 to 1, until a target is below 0."""

    first: CallEvent
    count: int = 0
    is_over: bool = False


_MOST = 1.01  # a sum of probabilities, with tolerance for rounding
_MATRIX = 2


class MultiLabelCrossEntropy(EventRule, code="TC335", aliases=("several-classes",)):
    """multi-label-cross-entropy: cross entropy is given several classes for one sample.

    What it checks:
        The rows of targets that cross_entropy treats as probabilities sum to at most one.

    Why it matters:
        Softmax shares one probability among all classes. If a sample has several labels, they
        compete: two correct classes cannot both be likely, and the model cannot express that none
        is correct. The loss falls, and thresholds at 0.5 find nothing.

    Fires on:
        - Three losses of training with targets of 0 to 1, a row of which sums to more than 1.01.

    Stays quiet on:
        - Soft, smoothed and mixed labels.
        - Counts, which are above 1.
        - Targets that are the input of the model, e.g. of an autoencoder of user choices.
        - A square matrix, e.g. of pairs in a batch.
        - reduction="none".
        - Losses without gradients.

    Fix:
        Use BCEWithLogitsLoss for labels that do not exclude each other. Divide rows by their sum if
        only one of several classes is correct.

    Source:
        https://github.com/wenliangdai/Modality-Transferable-MER/issues/3
    """

    title = "{subject} is given several classes for one sample"
    likely_cause = "The labels do not exclude each other: {observed}."
    fix = "Use BCEWithLogitsLoss, or divide the rows by their sum."
    needs = loss_needs(CROSS_ENTROPY) | Needs(calls=frozenset({Families.MODULE}))
    _inputs: set[str] = fresh(set)  # fingerprints of model inputs in this step
    _first: dict[str | None, tuple[CallEvent, float]] = fresh(dict)
    _counts: Counter[str | None] = fresh(Counter)  # by module of the loss

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            self._inputs.clear()
        elif isinstance(event, CallEvent) and event.root:
            tensors = tensors_in(event.args).values()
            self._inputs.update(tensor.fingerprint for tensor in tensors if tensor.fingerprint)
        call = as_loss(event, (CROSS_ENTROPY,))
        if call is None or call.args.get("reduction", "mean") == "none":
            return []
        target = given(call, "target")
        most = recorded.row_sums(target)[1]
        if target is None or most is None:
            return []
        self.triggered += 1
        if most <= _MOST or not self._are_labels(target):
            return []
        first, highest = self._first.get(call.module, (call, most))
        self._first[call.module] = first, max(most, highest)
        self._counts[call.module] += 1
        if self._counts[call.module] != _PROOF:
            return []
        return [
            loss_violation(
                self.code,
                first,
                "targets of cross_entropy assign several classes to one sample",
                expected="targets whose rows sum to 1",
                observed=f"rows of the targets sum to {max(most, highest):.3g}",
            )
        ]

    def _are_labels(self, target: TensorSummary) -> bool:
        low, high = number(target, "min"), number(target, "max")
        if low is None or high is None or not (low >= 0 and high <= 1):
            return False
        if len(target.shape) != _MATRIX or target.shape[0] == target.shape[1]:
            return False
        return target.fingerprint not in self._inputs
