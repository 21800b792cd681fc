"""Properties that a place of a model can have, and which variables are there."""

from __future__ import annotations

from traincheck.facts.variables import Variables
from traincheck.relations.subtrees import names_folded
from traincheck.schema.events import CallEvent

TRAINABLE, FROZEN, STILL, HELD, FREE = "trainable", "frozen", "still", "held", "free"
ONCE = "once"  # updated by one optimizer only
SPARSE = "sparse"  # its gradient has only the rows that were used
DTYPE = "dtype"  # the dtype that it has
REACHED = "reached"  # by a gradient; for any program
UNMOVED = "unmoved"  # while frozen; for any program
PLACES = (TRAINABLE, FROZEN, STILL, HELD, FREE, ONCE, SPARSE, DTYPE)
ROLES = ("parameter", "buffer")
MOST_STRUCTURE = 200  # patterns of the names of one model


def is_of_model(name: str) -> bool:
    """Whether a model owns it: no known model owns ``opt0[0].3``."""
    return "[" not in name.partition(".")[0]


def is_float(dtype: str) -> bool:
    """Whether it is a floating-point type."""
    return "float" in dtype


def structure(variables: Variables, model: str, role: str) -> list[str]:
    """Patterns of the variables of a model."""
    return names_folded(
        variable.name for variable in variables.by_role[role].values() if variable.model == model
    )


class Lookups:
    """Embedding weights, and whether their gradients are sparse."""

    CALLS = frozenset({f"torch.nn.functional.{n}" for n in ("embedding", "embedding_bag")})
    MODULES = frozenset(
        f"torch.nn.modules.sparse.{n}.forward" for n in ("Embedding", "EmbeddingBag")
    )

    def __init__(self) -> None:
        self._open: dict[int, bool] = {}  # span of the module that looks up
        self.sparse: dict[str, bool] = {}  # by name of the weight

    def observe(self, event: CallEvent) -> None:
        """Enter a call: a function comes before the module around it."""
        if event.api in self.CALLS:
            if event.parent is not None and event.grad_enabled:
                self._open[event.parent] = event.args.get("sparse") is True
        elif event.api in self.MODULES and event.span in self._open:
            self.sparse[f"{event.module}.weight"] = self._open.pop(event.span)
