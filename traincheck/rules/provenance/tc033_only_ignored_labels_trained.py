"""The loss is taken over the positions whose labels are ignored."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import LabelPositions, Positions
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families

_STEPS = 2
_FEWEST = 2  # positions of each kind
_MOST_OF_IGNORED = 0.5  # share of them that is trained


class OnlyIgnoredLabelsTrained(EventRule, code="TC033", severity="error"):
    """only-ignored-labels-trained: the mask of a loss is inverted.

    What it checks:
        In a loss over log-probabilities, the positions that have a label get a gradient, and those
        whose label is the ignored value (negative, such as -100) do not.

    Why it matters:
        The model is trained to predict a placeholder on prompts and padding. The answers that it is
        to learn do not take part.

    Fires on:
        Two steps in which gradients of log_softmax or logsumexp are zero at each position that has
        a label in the batch, and not zero at half of the ignored positions or more. Examples: DPO
        with mask = labels == -100 where != is meant; loss * ~mask.

    Stays quiet on:
        - Losses over all positions, and over any of those with a label.
        - Batches whose labels have no negative value, or another shape than the log-probabilities.

    Fix:
        Invert the mask: mask = labels != -100.

    Source:
        https://github.com/QwenAudio/CosyVoice/issues/1449
    """

    title = "The loss is taken over the ignored labels only"
    likely_cause = "The mask of the loss is inverted: {observed}."
    fix = "Invert the mask of the loss: mask = labels != ignore_index."
    needs = needs_of(LabelPositions)

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, LabelPositions)
        if found is None:
            return []
        known = [each for each in found.positions if each.labels is not None and each.trained]
        self.triggered += bool(known)
        inverted = [each for each in known if _is_inverted(each)]
        self._steps += bool(inverted) and len(inverted) == len(known)
        if not inverted or self._steps != _STEPS:
            return []
        self._steps += 1  # report it once
        return [self._violation(event, inverted[0])]

    def _violation(self, event: Event, found: Positions) -> Violation:
        rows = found.shape[0] if found.shape else 0
        return self.violation(
            event,
            subject=Subject(api=Families.BACKWARD),
            symptom=Symptom.LOSS_INPUT,
            message="only positions with an ignored label get a gradient",
            expected=f"gradients at the {found.labels} positions that have a label",
            observed=(
                f"of {found.labels} positions with a label in {rows} rows none gets a gradient, of "
                f"{found.ignored} ignored ones {found.trained_ignored} do"
            ),
        )


def _is_inverted(found: Positions) -> bool:
    return (
        found.trained_labels == 0
        and (found.labels or 0) >= _FEWEST
        and found.ignored >= _FEWEST
        and found.trained_ignored >= _MOST_OF_IGNORED * found.ignored
    )
