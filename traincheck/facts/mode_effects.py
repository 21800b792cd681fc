"""Whether evaluation mode changes how a model trains: dropout and batch normalization."""

from __future__ import annotations

from collections.abc import Collection

from traincheck.facts.modal_modules import BATCH_NORM, ModalModules, is_dropping
from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import CallEvent, CheckpointEvent, Event
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import MODAL

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
