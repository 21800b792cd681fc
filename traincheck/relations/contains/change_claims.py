"""Claims about state: during A, every variable of a kind changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traincheck.readings.variables import may_stay, variable_of
from traincheck.relations.base import ProposerBase
from traincheck.relations.phrasing import STEP
from traincheck.schema.claims import SAMPLED_STEPS, Hypothesis, Needs, sampled
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.torch_api import LEAVES, Families

_NEW = frozenset({"parameter@new"})
# With the norms of gradients: once these have faded, updates may round to nothing.
_UPDATED = Needs(states=sampled("parameter@step"), stats=sampled("gradient"))
# Possible claims: (outer window, role, change) -> what must be recorded.
TEMPLATES: Mapping[tuple[str, str, str], Needs] = {
    (STEP, "parameter", "changes"): _UPDATED,
    # Layers may run without recording the graph until the head has learned
    (STEP, "gradient", "changes"): Needs(
        states=_NEW, calls=frozenset({Families.MODULE}) | sampled(*LEAVES)
    ),
    (STEP, "gradient", "cleared"): Needs(states=_NEW | sampled("gradient@zero_grad")),
    (STEP, "buffer", "changes"): Needs(
        states=sampled("buffer@forward"), calls=frozenset({Families.MODULE})
    ),
    (Families.OPTIMIZER_STEP, "parameter", "changes"): _UPDATED,
    (Families.OPTIMIZER_STEP, "optimizer_state", "changes"): Needs(
        states=_NEW | sampled("optimizer_state@step")
    ),
}
PATIENCE = (
    SAMPLED_STEPS.first
)  # steps, all scanned: layers that are dropped at random come in sooner
# A gradient of zeros, or none, explains why nothing changed, so gradients are always needed. So are
# updates: with several optimizers, only those that step should change something.
_ALWAYS = Needs(
    calls=frozenset({Families.OPTIMIZER_STEP}),
    states=sampled("gradient@backward", "gradient@zero_grad"),
    kinds=frozenset({"step", "optimizer"}),
)


def needs(params: Mapping[str, Any]) -> Needs:
    """The needs for deciding the claim with these parameters."""
    # Gradients may come and go within backward, or be assigned: then the update shows them.
    updates = Needs(states=sampled("parameter@step") if "within" in params else frozenset())
    return TEMPLATES[template_of(params)] | _ALWAYS | updates


def within(params: Mapping[str, Any]) -> int:
    """The number of steps, from the first, in which it must happen once."""
    return int(params.get("within", 1))


def min_programs(params: Mapping[str, Any]) -> int | None:
    """In how many programs it must hold before it applies to others; None: never.

    Layers may be left out of a step, or have no part in one of several losses.
    """
    is_habit = template_of(params) == (STEP, "gradient", "changes") and within(params) == 1
    return None if is_habit else 1


def template_of(params: Mapping[str, Any]) -> tuple[str, str, str]:
    """The outer window, the role of the variables, and the change."""
    return params["outer"], params["role"], params["change"]


class ChangeProposer(ProposerBase):
    """Proposes each template for whole roles, and for one leaf of one module class."""

    def __init__(self) -> None:
        self._kinds: set[tuple[str, str, str]] = set()  # role, module class, leaf

    def observe(self, event: Event) -> None:
        if not isinstance(event, StateEvent) or event.change not in ("new", "replaced"):
            return
        if not may_stay(event):
            variable = variable_of(event)
            self._kinds.add((variable.role, variable.module_class, variable.leaf))

    def hypotheses(self) -> Iterator[Hypothesis]:
        for outer, role, change in TEMPLATES:
            if role == "optimizer_state":
                continue  # it changes wherever an update changes parameters, which is claimed
            base = {"outer": outer, "role": role, "change": change}
            if (outer, role, change) == (STEP, "gradient", "changes") and self._kinds:
                yield Hypothesis(relation="contains", params={**base, "within": PATIENCE})
            for found, module_class, leaf in sorted(self._kinds):
                if found == ("parameter" if role == "gradient" else role):
                    # Buffers differ in kind: statistics change, masks and position tables do not.
                    general = {**base, "leaf": leaf} if role == "buffer" else base
                    for params in (general, {**base, "leaf": leaf, "module_class": module_class}):
                        yield Hypothesis(relation="contains", params=params)
