"""Forward passes that write: to their input, or to statistics in evaluation mode."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments
from traincheck.schema.probes.words import EXPERIMENTS


class InputOverwritten(ProbeRule, code="TC006"):
    """input-overwritten: an in-place activation changes a value that is used again.

    What it checks:
        In a copy of the process, inplace=True of all layers is off. The loss of the program stays
        the same.

    Why it matters:
        The tensor that is overwritten is used again, often as the input of a skip connection, and
        now holds the result of the activation. torch raises no error where gradients do not need
        it.

    Fires on:
        nn.ReLU(inplace=True) or another layer with inplace=True, whose input is used again.

    Stays quiet on:
        - Activations whose input is not used again.
        - Programs that do not use the result of the layer, only what it has overwritten.
        - Differences of rounding.

    Fix:
        Use inplace=False for this layer.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.ReLU.html
    """

    title = "An in-place activation overwrites a value that is used again"
    likely_cause = (
        "An activation with inplace=True changes a tensor that is read again later, such as a"
        " residual."
    )
    fix = "Use inplace=False for this layer, or copy its input with clone() before."
    experiment: ClassVar[str] = Experiments.IN_PLACE

    def judged(self, event: ProbeEvent) -> Violation:
        change = event.numbers.get("change", 0.0)
        text = (
            f"with inplace=False of {event.where or event.model}, the loss differs by {change:.2g} "
            "of its value"
        )
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.OVERWRITTEN,
            message="an in-place activation changes the loss",
            expected="the same loss with and without inplace",
            observed=text,
        )


class StatisticsLearnInEvaluation(ProbeRule, code="TC008"):
    """statistics-learn-in-evaluation: running statistics change while their module is in eval mode.

    What it checks:
        Between two evaluation forwards in a row, no buffer changes that training changes, too, if
        its module is in eval mode.

    Why it matters:
        The data of evaluation enter statistics that training and checkpoints use. Scores depend on
        the order of evaluation.

    Fires on:
        An update of running statistics that does not test self.training, such as that of a
        normalizer of observations.

    Stays quiet on:
        - Buffers that training does not change, such as caches.
        - Buffers that are not saved.
        - Modules that are in training mode while they are evaluated.
        - Models without two evaluation forwards in a row.

    Fix:
        Return from the update if not self.training.

    Source:
        https://github.com/strands-labs/robots/pull/2426
    """

    title = "Running statistics go on learning in evaluation"
    likely_cause = (
        "A module updates its statistics in eval mode, e.g. without a test of self.training."
    )
    fix = EXPERIMENTS[Experiments.EVAL_STATE].fix
    experiment: ClassVar[str] = Experiments.EVAL_STATE

    def judged(self, event: ProbeEvent) -> Violation:
        buffer = event.detail.get("buffer", "").rpartition(".")[2]
        change = event.numbers.get("change", 0.0)
        text = (
            f"between two evaluation forwards, {buffer} of {event.where or event.model} "
            f"({event.detail.get('class', 'Module')}) changes by {change:.2g} of its largest "
            "value, in eval mode"
        )
        return self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.SILENT_WRITE,
            message="running statistics change in eval mode",
            expected="the same statistics after an evaluation",
            observed=text,
        )
