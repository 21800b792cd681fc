"""The betas of an optimizer such as Adam are in the wrong order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_LONG = 0.95  # usually only the second moment has such a long memory


class BetasSwapped(EventRule, code="TC218"):
    """betas-swapped: the average of gradients decays more slowly than that of their squares.

    What it checks:
        The first beta of an optimizer (for the mean of gradients) is not greater than the second
        one, if it is above 0.95.

    Why it matters:
        With betas=(0.999, 0.9) each update follows gradients of a thousand steps ago and is scaled
        by the last ten. Training still progresses, slowly, and overshoots.

    Fires on:
        - An optimizer whose betas are the usual two in the wrong order: (0.999, 0.9).

    Stays quiet on:
        - Equal betas.
        - A first beta that is only slightly greater, or small.

    Fix:
        Pass betas=(0.9, 0.999): first the beta for gradients, then the beta for their squares.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    title = "The betas of {subject} are in the wrong order"
    likely_cause = "The two betas{where} may have been swapped: {observed}."
    fix = "Pass the beta for gradients first, then the beta for their squares: betas=(0.9, 0.999)."
    needs = Needs(kinds=frozenset({"optimizer"}))

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, OptimizerEvent) or event.change != "created":
            return []
        found = []
        for betas in dict.fromkeys(_betas(event)):
            self.triggered += 1
            if betas[0] > max(_LONG, betas[1]) and betas[1] < _LONG:
                found.append(self._violation(event, betas))
        return found

    def _violation(self, event: OptimizerEvent, betas: tuple[float, float]) -> Violation:
        name = event.cls.rpartition(".")[2]
        return self.violation(
            event,
            subject=Subject(api=event.cls),
            symptom=Symptom.WRONG_VALUE,
            message=f"{event.id} ({name}) was built with betas={betas}",
            expected="the first beta, for gradients, below the second, for their squares",
            observed=f"betas={betas}",
        )


def _betas(event: OptimizerEvent) -> Iterator[tuple[float, float]]:
    for group in event.groups:
        betas = group.hyper.get("betas")
        if isinstance(betas, Sequence) and not isinstance(betas, str) and len(betas) == 2:  # noqa: PLR2004
            first, second = betas
            if isinstance(first, float) and isinstance(second, float):
                yield first, second
