"""A checkpoint leaves out parameters that the optimizer holds. Judges single saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.rules.base.event_rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, OptimizerEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class OptimizerSavedInPart(EventRule, code="TC605"):
    """optimizer-saved-in-part: the saved state of an optimizer leaves parameters out.

    What it checks:
        The optimizer state in a file that is saved lists as many parameters as an optimizer of the
        run holds.

    Why it matters:
        What is left out has no momentum after a resume, or the state cannot be loaded at all. It
        shows only then, when the run that saved is gone.

    Fires on:
        An engine that keeps the parameters that required grad when it was made, while the optimizer
        holds them all.

    Stays quiet on:
        States as optimizer.state_dict() makes them; files of another program that are written
        again; sharded optimizers, which hold a part of what is saved.

    Fix:
        Save optimizer.state_dict() as it is, and load the file once to see that it fits.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6771
    """

    title = "The saved state of the optimizer leaves parameters out"
    title_of_several = "A saved state has fewer parameters than any optimizer"
    likely_cause = "What is saved{where} was made from a list that is not the optimizer's."
    fix = "Save optimizer.state_dict() as it is."
    fix_of_several = "Save the state_dict() of each optimizer as it is."
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
                    f"{event.path or 'the file'} is given the state of {listed} parameters, but "
                    f"{name} holds {count}"
                ),
                expected=f"the {count} parameters of {name}",
                observed=f"{listed} parameters",
                evidence=(event, optimizer),
                optimizer=f"{optimizer.id} ({name})" if len(self._held) > 1 else "",
            )
        ]
