"""A causal language model is trained to predict its own input tokens. Also checks the loss."""

from __future__ import annotations

from math import inf, log

from traincheck.readings.losses import OVER_CLASSES, given, number
from traincheck.rules.base.rule import EventRule
from traincheck.rules.shared.causality import CALLS, Readers, TrainingStep, is_causal, is_open
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import EMBEDDING, SOFTMAXES, Families
from traincheck.schema.values import tensor_summary

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
        if step is None or not step.losses or not _is_causal(step):
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


def _is_causal(step: TrainingStep) -> bool:
    """Whether some attention hides later positions, and none shows all positions."""
    calls = [(call, read.length) for read in step.reads for call in read.calls]
    is_shown = any(length and is_open(call, length) for call, length in calls)
    return any(is_causal(call) for call, _ in calls) and not is_shown


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
