"""Running statistics go on learning while a model is evaluated."""

from __future__ import annotations

from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments


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
    fix = "In the method that updates them: if not self.training: return."
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
