"""A base class of rules about weight decay. Subclasses select the parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from traincheck.rules.base.model_rule import MODELS, Model, about, model_of
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.values import number

_LEAST = 1e-6  # a smaller decay has no effect within a training
DECAY = MODELS | Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer", "step"}))


class DecayRule(BuiltInRule):
    """Compares decaying parameters with the structure of the models at the end of a step."""

    def __init__(self) -> None:
        super().__init__()
        self._models: dict[str, Model] = {}
        self._waiting: list[OptimizerEvent] = []
        self._reported: set[str] = set()  # lines that create optimizers, or optimizer ids
        self._frozen: set[str] = set()  # optimizers skip parameters without a gradient

    def observe(self, event: Event) -> Sequence[Violation]:
        model = model_of(event)
        if model is not None:
            self._models[model.name] = model
        elif isinstance(event, StateEvent):
            if event.role == "parameter" and event.change in ("new", "replaced", "flags"):
                (self._frozen.discard if event.requires_grad else self._frozen.add)(event.name)
        elif isinstance(event, OptimizerEvent):
            self._waiting.append(event)
        elif isinstance(event, StepEvent) and self._waiting:
            waiting, self._waiting = self._waiting, []
            return [found for optimizer in waiting for found in self._judge(optimizer)]
        return ()

    @abstractmethod
    def should_not_decay(self, name: str, family: str | None) -> bool:
        """Whether a parameter with this full name, in a layer of this family, should not decay."""

    def _judge(self, event: OptimizerEvent) -> Sequence[Violation]:
        if not event.cls.startswith("torch.optim."):  # custom optimizers may exclude them
            return ()
        decaying = [
            name
            for group in event.groups
            if (number(group.hyper.get("weight_decay")) or 0.0) >= _LEAST
            for name in group.params
            if name not in self._frozen
        ]
        place = event.where or event.id  # trials and folds create theirs in one line
        if not decaying or place in self._reported:
            return ()
        self.triggered += 1
        found = sorted(filter(self._is_wrong, decaying))
        if not found:
            return ()
        self._reported.add(place)
        violation = about(
            self.info,
            event,
            found,
            expected="weight_decay=0 for these parameters",
            observed=f"decayed by {event.id} ({event.cls.rpartition('.')[2]})",
        )
        return [replace(violation, subject=Subject(variable=found[0]))]

    def _is_wrong(self, name: str) -> bool:
        module = name.rpartition(".")[0]
        model = self._models.get(name.partition(".")[0])
        family = model.modules.get(module, {}).get("family") if model is not None else None
        return self.should_not_decay(name, family)
