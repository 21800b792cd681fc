"""The words of *membership*, and the places in a model that its claims are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.readings.variables import Variables
from traincheck.relations.base import counterexample
from traincheck.relations.phrasing import in_program
from traincheck.relations.subtrees import names_folded
from traincheck.schema.events import CallEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.words import joined

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


_SHOWN = 6  # names in a sentence
_TEXTS = {
    TRAINABLE: "Every parameter under {under} requires grad",
    FROZEN: "Every parameter under {under} is frozen (requires_grad is False)",
    STILL: "No training step changes a parameter under {under}",
    HELD: "Every parameter under {under} is held by an optimizer",
    FREE: "No optimizer holds a parameter under {under}",
    SPARSE: "Every embedding under {under} has sparse gradients",
    DTYPE: "Every {role} under {under} has dtype {dtype}",
    ONCE: "No training step updates a parameter under {under} with two optimizers",
}
# What breaks it: symptom, expected, observed
_BROKEN = {
    TRAINABLE: (Symptom.FROZEN, "requires_grad of {name} is True", "requires_grad is False"),
    FROZEN: (Symptom.UNFROZEN, "requires_grad of {name} is False", "requires_grad is True"),
    STILL: (Symptom.SILENT_WRITE, "no step changes {name}", "this step changes it"),
    HELD: (Symptom.NOT_IN_OPTIMIZER, "an optimizer holds {name}", "held by no optimizer"),
    FREE: (Symptom.UNFROZEN, "no optimizer holds {name}", "held by an optimizer"),
    ONCE: (
        Symptom.APPLIED_TWICE,
        "one optimizer updates {name}",
        "several optimizers update it",
    ),
    SPARSE: (
        Symptom.WRONG_VALUE,
        "the gradient of {name} is sparse, so that unused rows do not change",
        "a dense gradient: momentum and weight decay change unused rows",
    ),
    UNMOVED: (
        Symptom.SILENT_WRITE,
        "no optimizer changes {name}, as requires_grad is False",
        "changed by an optimizer",
    ),
    DTYPE: (Symptom.PRECISION, "dtype {dtype} for {name}", ""),
    REACHED: (
        Symptom.NOT_IN_OPTIMIZER,
        "an optimizer holds {name}, which gets a gradient",
        "held by no optimizer",
    ),
}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    what = params.get("is")
    if what == REACHED:
        return "Every parameter that gets a gradient is held by an optimizer"
    if what == UNMOVED:
        return "No optimizer changes a parameter that is frozen (requires_grad is False)"
    if what is not None:
        return in_program(params, _TEXTS[what].format(**params))
    start = len(params["model"]) + 1
    names = [pattern[start:] for pattern in params["has"]]
    text = f"The {params['role']}s of {params['model']} are {joined(names, _SHOWN)}"
    return in_program(params, text)


def negative(params: Mapping[str, Any], name: str, how: str, event: StepEvent) -> Example:
    """The counterexample of a variable.

    Args:
        params: the claim.
        name: the variable.
        how: what it is instead, where the claim leaves that open.
        event: the end of the step in which it broke the claim.
    """
    if "has" in params:
        symptom, module = Symptom.STRUCTURE, params["model"]
        expected = f"{module} has the {params['role']}s of every reference run"
        observed = f"{name} {how}"
    else:
        symptom, expected, observed = _BROKEN[params["is"]]
        expected, module = expected.format(name=name, dtype=params.get("dtype")), None
        observed = observed or how
    return counterexample(event, Subject(variable=name, module=module), expected, observed, symptom)
