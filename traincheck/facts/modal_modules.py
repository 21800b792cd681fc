"""Modules that act differently in evaluation mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from traincheck.schema.events import CallEvent
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.torch_api import ATTENTION

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
        droppers = {path for path, facts in modules.items() if _drops(facts)}
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


def _drops(facts: Mapping[str, Any]) -> bool:
    is_active = facts.get("drop_prob", facts.get("p", 1)) != 0
    return is_active and _DROPPER.search(str(facts.get("class"))) is not None
