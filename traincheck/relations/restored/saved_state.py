"""Objects of a program that it may save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traincheck.relations.restored.fact import MODEL, OPTIMIZER, SCALER, SCHEDULER
from traincheck.schema.events import (
    CallEvent,
    Event,
    OptimizerEvent,
    StateEvent,
)
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.parameter_names import is_unowned
from traincheck.schema.torch_api import Families

# Buffers that every module saves
_ALWAYS_SAVED = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(slots=True)
class SavableState:
    """Follows optimizers, schedulers, scalers and models of one process."""

    _held: dict[str, OptimizerEvent] = field(default_factory=dict)  # optimizers by id
    _stepped: set[str | None] = field(
        default_factory=set
    )  # optimizers that stepped since the last was created
    _scheduled: set[str | None] = field(default_factory=set)  # optimizers with a scheduler
    # Schedulers that step, by optimizer and class; parts of a composed one do not
    _schedulers: set[tuple[str | None, str]] = field(default_factory=set)
    _has_scaler: bool = False
    _models: set[str] = field(default_factory=set)
    _variables: dict[str, dict[str, str]] = field(default_factory=dict)  # roles, by model and name

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._held[event.id] = event
            if event.change == "created":  # those of an earlier fold or stage may be done
                self._stepped.clear()
        elif (model := observed(event, ModelStructure)) is not None:
            self._models.add(model.name)
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StateEvent) and event.role in ("parameter", "buffer"):
            if event.change == "gone":
                self._variables.get(model_of(event.name), {}).pop(event.name, None)
            elif event.change == "new" and not is_unowned(event.name):
                self._variables.setdefault(model_of(event.name), {})[event.name] = event.role

    def _call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.OPTIMIZER_STEP:
            self._stepped.add(event.owner)
        elif family == Families.SCHEDULER_CREATED:
            self._scheduled.add(event.owner)
        elif family == Families.SCHEDULER_STEP:
            self._schedulers.add((event.owner, event.api))
        elif family == Families.SCALER_STEP:
            self._has_scaler |= event.args.get("enabled") is not False

    def numbers(self, size: int) -> dict[str, int]:
        """The number of objects to save, by kind. size: saved values of all models.

        There is no number of models if fewer values are saved than trained: a part may be missing.
        """
        stepped = self._stepped
        schedulers = sum(owner in stepped for owner, _ in self._schedulers)
        found = {
            OPTIMIZER: len(stepped),
            SCHEDULER: max(schedulers, min(1, len(self._scheduled & stepped))),
            SCALER: int(self._has_scaler),
        }
        events = [event for owner, event in self._held.items() if owner in stepped]
        trained = {identity for e in events for group in e.groups for identity in group.ids}
        if size >= len(trained):
            models = set().union(*map(_models_of, events))
            classes = {model.partition("#")[0] for model in models}
            copies = {model for model in self._models if model.partition("#")[0] in classes}
            found[MODEL] = len(models | copies)  # a copy is an average, or a target network
        return found

    def has(self, kind: str, count: int) -> bool | None:
        """Whether a model, or optimizer, has so many values; None if that is not known."""
        if kind == OPTIMIZER:
            held = {sum(len(group.params) for group in e.groups) for e in self._held.values()}
            return count in held if held else None
        sizes = [_sizes(roles) for roles in self._variables.values()]
        if any(low <= count <= high for low, high in sizes):
            return True
        # More than all: a state may hold a module that is shared or unused
        return None if count > max((high for _, high in sizes), default=0) else False

    def models_of_others(self, owner: str | None) -> set[str]:
        """Models that other optimizers hold, and not this one."""
        if owner not in self._held:
            return set()
        others = (event for other, event in self._held.items() if other != owner)
        return set().union(*map(_models_of, others)) - _models_of(self._held[owner])


def _models_of(event: OptimizerEvent) -> set[str]:
    return {model_of(name) for group in event.groups for name in group.params}


def model_of(name: str) -> str:
    """The model that a variable belongs to."""
    return name.partition(".")[0]


def _sizes(roles: Mapping[str, str]) -> tuple[int, int]:
    """The fewest and the most values in the state of a model: some buffers may be left out."""
    saved = [n for n, role in roles.items() if role == "parameter" or n.endswith(_ALWAYS_SAVED)]
    return len(saved), len(roles)
