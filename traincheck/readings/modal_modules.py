"""Modules that act differently in evaluation mode, and models that help to train others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import CallEvent, CheckpointEvent, Event
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import (
    AuxiliaryCall,
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    ModelStructure,
)
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import ATTENTION, MODAL

BATCH_NORM = "torch.nn.functional.batch_norm"
# Modules of libraries that drop paths or areas at random in training mode
_DROPPER = re.compile(
    r"^(?!torch\.nn\.).*(drop_?(path|block|connect)|stochastic_?depth)", re.IGNORECASE
)


class ModalModules:
    """Modules whose mode matters, according to the marks of models.

    Attributes:
        droppers: paths of modules that drop parts of their parent.
        blank: paths of batch norms that had seen no batch when they were found.
    """

    def __init__(self) -> None:
        self.droppers: set[str] = set()
        self.blank: set[str] = set()

    def enter(self, model: ModelStructure) -> None:
        """Enter what a model is made of."""
        modules = model.modules
        droppers = {
            path
            for path, facts in modules.items()
            if facts.get("drop_prob", facts.get("p", 1)) != 0
            and _DROPPER.search(str(facts.get("class")))
        }
        blank = {path for path, facts in modules.items() if facts.get("initial")}
        self.droppers = (self.droppers - modules.keys()) | droppers
        self.blank = (self.blank - modules.keys()) | blank

    def affected(
        self,
        root: str,
        names: Collection[str],
        dropout: AbstractSet[str],
        norms: AbstractSet[str],
        *,
        was_training: bool,
        is_loaded: bool,
    ) -> set[str]:
        """Modules below ``root`` that should not train in evaluation mode.

        names: its trained parameters. dropout, norms: paths of modules that called one.
        was_training: whether it was in training mode before. is_loaded: whether it was loaded; its
        statistics should stay then.
        """
        idle = {path for path in dropout if any(map(around(path), names))}
        trained = {path for path in norms if f"{path}.weight" in names}
        if not was_training:
            return idle if is_loaded else idle | (trained & self.blank)
        droppers = {p for p in self.droppers if p.startswith(f"{root}.")}
        return idle | trained | {p for p in droppers if any(map(around(p), names))}


def around(path: str) -> Callable[[str], bool]:
    """Whether a variable is in a module, or in its parent."""
    heads = (f"{path}.", f"{path.rpartition('.')[0]}.")
    return lambda name: name.startswith(heads)


def is_dropping(call: CallEvent) -> bool | None:
    """Whether a call drops elements; None if it has no drop probability."""
    is_attention = call.api == ATTENTION
    share = call.args.get("dropout_p" if is_attention else "p")
    if not isinstance(share, (int, float)) or isinstance(share, bool) or share <= 0:
        return None
    return True if is_attention else call.args.get("training") is True


MODE_EFFECTS = Needs(calls=sampled(*MODAL), kinds=frozenset({"mark", "checkpoint"}))


class ModeEffects:
    """Follows dropout, batch normalization, and the models that were in training mode."""

    def __init__(self) -> None:
        self._modules = ModalModules()
        self._dropout: set[str] = set()  # paths of modules that called one, on or off
        self._norms: set[str] = set()
        self._was_training: set[str] = set()  # models
        self._loaded: set[str] = set()

    def call(self, event: CallEvent) -> None:
        """Enter a call of one of MODAL."""
        if event.module is None:
            return
        if event.api == BATCH_NORM:
            self._norms.add(event.module)
        elif is_dropping(event) is not None:
            self._dropout.add(event.module)

    def trained(self, root: str) -> None:
        """A model ran in training mode."""
        self._was_training.add(root)

    def observe(self, event: Event) -> None:
        """Enter marks of models, and what was loaded."""
        model = observed(event, ModelStructure)
        if model is not None:
            self._modules.enter(model)
        elif isinstance(event, CheckpointEvent) and event.op == "load_state_dict":
            self._loaded.add(event.target or "")

    def change_training(self, root: str, names: Collection[str]) -> bool:
        """Whether evaluation mode changes the training of the parameters of these names."""
        affected = self._modules.affected(
            root,
            names,
            {path for path in self._dropout if _is_below(path, root)},
            {path for path in self._norms if _is_below(path, root)},
            was_training=root in self._was_training,
            is_loaded=root.partition(".")[0] in self._loaded,
        )
        return bool(affected)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}.")


_CALLS = (AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms)
AUXILIARY = needs_of(*_CALLS)


@dataclass(slots=True)
class AuxiliaryModel:
    """The state of one model at its last scan.

    Attributes:
        weights: their digest.
        first: step of the first scan.
        looks: number of scans.
        since: step of the last scan with changed weights, or of the first scan.
        moved: whether this scan found changed weights.
        rest: steps since the previous change.
        has_moved: whether the weights have ever changed.
    """

    name: str
    weights: str
    first: int | None
    since: int
    looks: int = 0
    moved: bool = False
    rest: int = 0
    has_moved: bool = False


class AuxiliaryModels:
    """The auxiliary models of one process, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, AuxiliaryModel] = {}

    def look(self, call: AuxiliaryCall, at: int | None) -> AuxiliaryModel:
        """Enter a scan of one model. at: the step of the look."""
        weights, step = call.weights, at or 0
        model = self.by_name.get(call.model)
        if model is None:
            model = self.by_name[call.model] = AuxiliaryModel(call.model, weights, at, step)
        model.looks += 1
        model.moved, model.rest = model.weights != weights, step - model.since
        if model.moved:
            model.weights, model.since, model.has_moved = weights, step, True
        return model


def auxiliary_call(event: Event) -> AuxiliaryCall | None:
    """The call of such a model that the event tells of."""
    return observed(event, *_CALLS)
