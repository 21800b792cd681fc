"""Labels that already are the next tokens are shifted once more. Compares no contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from traincheck.readings.losses import OVER_CLASSES, are_next_tokens, as_loss, given, number
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families
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
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, BatchEvent):
            self._find_labels(f"{event.loader} ", event.leaves)
        elif isinstance(event, StepEvent):
            return self._step(event)
        elif isinstance(event, CallEvent):
            self._call(event)
        return []

    def _call(self, event: CallEvent) -> None:
        if event.family == Families.MODULE:
            if event.root and event.grad_enabled:
                self._find_labels(f"{event.module or event.api} argument ", event.args)
            return
        call = as_loss(event, OVER_CLASSES)
        target = None if call is None else given(call, "target")
        if call is None or target is None:
            return
        if call.stage == "train" and number(target, "shifted") == _TWICE:
            self._twice = self._twice or call
        else:
            self._others += 1

    def _find_labels(self, where: str, values: Mapping[str, Any]) -> None:
        self._labels = self._labels or next(_shifted(where, values), None)

    def _step(self, event: StepEvent) -> list[Violation]:
        labels, twice, others = self._labels, self._twice, self._others
        self._labels = self._twice = None
        self._others = 0
        if labels is None or not event.counters.get("backward"):
            return []
        self.triggered += 1
        if twice is None or others:
            return []
        self._is_over = True
        return [self._violation(twice, *labels)]

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
