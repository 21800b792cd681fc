"""Labels of language models that are shifted twice, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, log, prod
from typing import Any

from traincheck.readings import recorded
from traincheck.readings.losses import OVER_CLASSES, are_next_tokens, as_loss, given, number
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.causality import CALLS, Readers, is_causal, is_open
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import EMBEDDING, SOFTMAXES, Families
from traincheck.schema.values import tensor_summary

_TWICE = 2


class LabelsShiftedTwice(EventRule, code="TC322"):
    """labels-shifted-twice: a language model is trained to predict two tokens ahead.

    What it checks:
        Labels that are the next tokens of their batch reach the loss unshifted.

    Why it matters:
        A model that shifts its labels itself expects labels equal to its inputs. Given the next
        tokens, it learns to predict the token after the next. The loss falls, and the generated
        text makes no sense.

    Fires on:
        - A training step whose batch, or model input, holds a tensor of the next tokens of another
          tensor. The only loss over classes gets these labels without the first of each row, for
          logits without the last.
        - The same for all logits, with the last label ignored (-100).

    Stays quiet on:
        - Labels that equal the inputs.
        - Labels of next tokens that are used whole.
        - Losses over some positions only.
        - Heads for further tokens beside a loss over all labels.
        - Logits that were cut in other ways.
        - Evaluation.
        - Steps between the sampled ones.

    Fix:
        Pass the inputs as labels, or do not shift in the model.

    Source:
        https://github.com/huggingface/transformers/issues/47394
    """

    title = "Labels are shifted twice before {subject}"
    likely_cause = (
        "The batch holds the next tokens as labels, and the model shifts again: {observed}."
    )
    fix = "Pass the model its inputs as labels, or remove the shift in the model."
    needs = Needs(
        calls=OVER_CLASSES | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=OVER_CLASSES | {"batch"},
    )

    def __init__(self) -> None:
        super().__init__()
        self._labels: tuple[str, tuple[int, int]] | None = None  # name, shape
        self._twice: CallEvent | None = None
        self._others = 0

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, BatchEvent):
            self._find_labels(f"{event.loader} ", event.leaves)
        elif isinstance(event, StepEvent):
            labels, twice, others = self._labels, self._twice, self._others
            self._labels = self._twice = None
            self._others = 0
            if labels is None or not event.counters.get("backward"):
                return []
            self.triggered += 1
            if twice is None or others:
                return []
            self.is_over = True
            return [self._violation(twice, *labels)]
        elif isinstance(event, CallEvent):
            if event.family == Families.MODULE:
                if event.root and event.grad_enabled:
                    self._find_labels(f"{event.module or event.api} argument ", event.args)
                return []
            call = as_loss(event, OVER_CLASSES)
            target = None if call is None else given(call, "target")
            if call is None or target is None:
                return []
            if call.stage == "train" and recorded.ahead(target) == _TWICE:
                self._twice = self._twice or call
            else:
                self._others += 1
        return []

    def _find_labels(self, where: str, values: Mapping[str, Any]) -> None:
        self._labels = self._labels or next(_shifted(where, values), None)

    def _violation(self, call: CallEvent, name: str, shape: tuple[int, int]) -> Violation:
        rows, columns = shape
        target = given(call, "target")
        size = prod(target.shape) if target is not None else 0
        rest = "" if size < rows * columns else " and -100 at its end"
        return loss_violation(
            self.code,
            call,
            f"the labels ({name}) already are the next tokens, but are shifted once more",
            expected=(
                f"a target of all {rows * columns} labels of {name} ({rows} rows of {columns})"
            ),
            observed=(
                f"a target of {size}, without the first label of each row{rest}: each position is "
                "scored on the token two ahead"
            ),
        )


def _shifted(where: str, values: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the labels among tensors."""
    for path, value in values.items():
        tensor = tensor_summary(value)
        if tensor is not None and are_next_tokens(tensor):
            rows, columns = tensor.shape
            yield f"{where}{path}", (rows, columns)


_NEAR_ZERO = 0.02  # fraction of the loss of a guess
_PROOF = 2  # steps


class LabelsNotShifted(EventRule, code="TC338"):
    """labels-not-shifted: a causal language model is trained to predict its own input tokens.

    What it checks:
        If attention hides the tokens after each position, labels are not the tokens that the model
        embeds at the same positions.

    Why it matters:
        Each position only has to repeat its input. The loss falls to almost zero, and the model
        generates one token again and again.

    Fires on:
        - Two training steps in which the targets of all losses over classes are the tokens that the
          model embeds, its attention over them is causal, and the loss is below 2 % of that of a
          guess. The finding names the first such step.

    Stays quiet on:
        - Labels that are one token ahead.
        - Models that shift their embedded tokens.
        - A loss that stays high, e.g. because the shift comes after the embedding.
        - Attention in both directions.
        - Evaluation.
        - Steps between the sampled ones.

    Options:
        - share: fraction of the loss of a guess among all classes, below which labels count as
          copied.

    Fix:
        Train on model(tokens[:, :-1]) with tokens[:, 1:] as labels.

    Source:
        https://github.com/KempnerInstitute/KempnerForge/issues/154
    """

    title = "Labels are the input tokens of the model"
    likely_cause = "Inputs and labels are not shifted against each other: {observed}."
    fix = "Pass tokens[:, :-1] to the model, and tokens[:, 1:] to the loss."
    needs = Needs(
        calls=OVER_CLASSES | CALLS | {EMBEDDING, Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=OVER_CLASSES | SOFTMAXES | {EMBEDDING, "batch"},
    )

    def __init__(self, share: float = _NEAR_ZERO) -> None:
        super().__init__()
        self.share = share
        self._readers = Readers()
        self._first: CallEvent | None = None
        self._found = 0

    def judge(self, event: Event) -> list[Violation]:
        step = self._readers.observe(event) if self._found < _PROOF else None
        if step is None or not step.losses:
            return []
        # Whether some attention hides later positions, and none shows all positions.
        calls = [(call, read.length) for read in step.reads for call in read.calls]
        is_shown = any(length and is_open(call, length) for call, length in calls)
        if not (any(is_causal(call) for call, _ in calls) and not is_shown):
            return []
        self.triggered += 1
        if not all(number(given(loss, "target"), "fed") for loss in step.losses):
            return []
        self._first = self._first or step.losses[0]
        if not all(_is_low(loss, self.share) for loss in step.losses):
            return []
        self._found += 1
        return (
            [self._violation(self._first, _mean(step.losses[0]))] if self._found == _PROOF else []
        )

    def _violation(self, first: CallEvent, mean: float) -> Violation:
        return loss_violation(
            self.code,
            first,
            "the labels are the input tokens of the model at the same positions",
            expected="labels that are one token ahead of the input tokens",
            observed=f"the same tokens as labels and as inputs; the loss falls to {mean:.2g}",
        )


def _mean(loss: CallEvent) -> float:
    """The mean loss over all labels, or infinity if it is unknown."""
    result = tensor_summary(loss.result)
    is_mean = loss.args.get("reduction") == "mean"
    return result.value if is_mean and result is not None and result.value is not None else inf


def _is_low(loss: CallEvent, share: float) -> bool:
    """Whether the loss is negligible compared with that of a guess among all classes."""
    scores = given(loss, "input")
    if scores is None or len(scores.shape) < 2:  # noqa: PLR2004
        return False
    return _mean(loss) < share * log(max(scores.shape[1], 2))
