"""The findings of the comparison of one pair of ranks, step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from traincheck.diff.compare import StepResult
from traincheck.diff.evidence import Evidence
from traincheck.diff.items import Item
from traincheck.diff.phases import Phase

_MOST_NOTES = 5
_RANDOM = (Phase.BATCH, Phase.FORWARD, Phase.LOSS)  # that generators have a part in


@dataclass(slots=True)
class Tally:
    """The findings of the comparison of one pair of ranks so far.

    Attributes:
        compared, unknown: by phase, how many values were compared, and how many could not be.
        steps: that were compared. after: of these, how many come after the first difference.
        growth: relative difference of the loss by step.
        first: the step of the first difference; what differs in it.
        latent: a generator in another state on which nothing depends yet.
        begun: the steps of A and B with the first difference, if it was latent until ``first``.
    """

    compared: Counter[Phase] = field(default_factory=Counter)
    unknown: Counter[Phase] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    after: int = 0
    alike_after: int = 0
    growth: dict[int, float] = field(default_factory=dict)
    first: StepResult | None = None
    evidence: Evidence | None = None
    latent: Evidence | None = None
    begun: tuple[int, int] | None = None

    def add(self, result: StepResult) -> None:
        """Count one step; its items are those that count."""
        self.steps += not result.is_tail
        self.compared += result.compared
        self.unknown += result.unknown
        for note in result.notes:
            if note not in self.notes and len(self.notes) < _MOST_NOTES:
                self.notes.append(note)
        if self.first is None:
            return
        self.after += not result.is_tail
        self.alike_after += not (result.items or result.is_tail)

    def found(self, result: StepResult, evidence: Evidence) -> None:
        """Take in the first step in which something differs.

        Another state of a generator alone is latent: it becomes the first difference when samples,
        outputs or a loss differ later, which may come of it.
        """
        others = [item for item in result.items if not _is_latent(item)]
        if not others:
            self.latent = self.latent or evidence
            return
        self.first, self.evidence = result, evidence
        if self.latent is None:
            return
        since = self.latent.a.view.number
        if others[0].phase in _RANDOM:
            self.evidence = replace_items(self.latent, result)
            self.begun = (self.latent.a.view.number, self.latent.b.view.number)
        else:
            self.notes.append(f"the {self.latent.item.name} differs since step {since}")

    def end(self) -> None:
        """All steps are compared: a difference that stayed latent is a note."""
        if self.first is None and self.latent is not None:
            name, step = self.latent.item.name, self.latent.a.view.number
            self.notes.append(
                f"the {name} is in another state from step {step} on, and no compared value "
                "depends on it"
            )


def replace_items(latent: Evidence, result: StepResult) -> Evidence:
    """The evidence of a latent difference, with what came of it."""
    return replace(latent, items=[*latent.items, *result.items])


def _is_latent(item: Item) -> bool:
    return item.phase is Phase.RNG and item.what == "state"
