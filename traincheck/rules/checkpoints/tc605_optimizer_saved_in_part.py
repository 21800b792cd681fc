"""A checkpoint omits parameters that the optimizer holds. Judges single saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class OptimizerSavedInPart(EventRule, code="TC605"):
    """optimizer-saved-in-part: the saved state of an optimizer omits parameters.

    What it checks:
        The optimizer state in a saved file lists as many parameters as an optimizer of the run
        holds.

    Why it matters:
        Omitted parameters have no momentum after a resume, or the state cannot be loaded at all.
        This shows only after the run that saved it has ended.

    Fires on:
        - An engine that stores the parameters that required grad at its creation, while the
          optimizer holds all of them.

    Stays quiet on:
        - States as returned by optimizer.state_dict().
        - Files of another program that are written again.
        - Sharded optimizers, which hold a part of the saved state.

    Fix:
        Save optimizer.state_dict() unchanged, and load the file once to verify that it matches.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6771
    """

    title = "The saved state of the optimizer omits parameters"
    title_of_several = "A saved state has fewer parameters than any optimizer"
    likely_cause = (
        "The saved state{where} may have been built from a list that is not the optimizer's."
    )
    fix = "Save optimizer.state_dict() unchanged."
    fix_of_several = "Save the state_dict() of each optimizer unchanged."
    needs = Needs(kinds=frozenset({"checkpoint", "optimizer", "step"}))

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, tuple[int, OptimizerEvent]] = {}
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, OptimizerEvent):
            self._held[event.id] = (sum(len(group.params) for group in event.groups), event)
        elif isinstance(event, CheckpointEvent) and event.op == "save" and self._held:
            for part in event.parts.values():
                if isinstance(part, Mapping) and part.get("kind") == "optimizer":
                    return self._save(event, part)
        return []

    def _save(self, event: CheckpointEvent, part: Mapping[str, Any]) -> list[Violation]:
        listed = part.get("params")
        if not isinstance(listed, int) or not listed:
            return []
        self.triggered += 1
        counts = [count for count, _ in self._held.values()]
        if self._is_reported or listed >= min(counts):
            return []
        self._is_reported = True
        count, optimizer = min(self._held.values(), key=lambda held: held[0])
        name = optimizer.cls.rpartition(".")[2]
        return [
            Violation(
                check_id=self.code,
                step=event.step,
                rank=event.rank,
                stage=event.stage,
                subject=Subject(api=optimizer.cls),
                symptom=Symptom.NOT_RESTORED,
                message=(
                    f"{event.path or 'the file'} holds the state of {listed} parameters, but "
                    f"{name} holds {count}"
                ),
                expected=f"the {count} parameters of {name}",
                observed=f"{listed} parameters",
                evidence=(event, optimizer),
                optimizer=f"{optimizer.id} ({name})" if len(self._held) > 1 else "",
            )
        ]
