"""Claims about calls: during A, B is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.readings.modal_modules import MODE_EFFECTS
from traincheck.readings.step_changes import ADDED
from traincheck.relations import awaited_changes
from traincheck.relations.phrasing import (
    STEP,
)
from traincheck.schema.claims import Needs, within_modules
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import COMPILED, LOSS_MODULES, Families

# Calls of every training step -> the counters that prove them, and the symptom of their absence.
LANDMARKS: Mapping[str, tuple[tuple[str, ...], Symptom]] = {
    Families.OPTIMIZER_STEP: (("optimizer_step", "scaler_step"), Symptom.MISSING_STEP),
    Families.ZERO_GRAD: (("zero_grad",), Symptom.MISSING_ZERO_GRAD),
    Families.BACKWARD: (("backward",), Symptom.NO_BACKWARD),
}
UPDATES, _ = LANDMARKS[Families.OPTIMIZER_STEP]
_OF_STEP = {Families.ZERO_GRAD: ADDED, Families.MODULE: Families.BACKWARD}
PATIENT = "an optimizer, and steps enough to be patient"
PATIENCE = 8  # steps: searches compute gradients before they step


def needs(params: Mapping[str, Any]) -> Needs:
    """The needs for deciding the claim with these parameters."""
    step = frozenset({"step"})
    if params["outer"] != STEP:  # steps show where calls may be missing from the trace
        calls = within_modules(params["outer"], params["inner"], COMPILED)
        return Needs(calls=calls, kinds=step | ({"mark"} if "program" in params else set()))
    if params["inner"] != Families.MODULE:
        return Needs(kinds=step) | awaited_changes.needs(params["inner"])
    return (
        Needs(
            calls=frozenset(
                {Families.MODULE, Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}
            ),
            states=frozenset({"parameter@new"}),
            kinds=step | {"optimizer"},
        )
        | MODE_EFFECTS
    )


def min_programs(params: Mapping[str, Any]) -> int | None:
    """In how many programs it must hold before it applies to others; None: never.

    Gradients are also computed for other purposes, without an optimizer step.
    """
    habits = (Families.OPTIMIZER_STEP, Families.BACKWARD)  # a batch may be left out
    is_habit = params["outer"] == STEP and params["inner"] in habits and "within" not in params
    return None if is_habit else 1


def antecedent(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The conditions of the claim, such as enough steps.

    Without a backward, no model trains. If backward adds to no gradient, and the program clears
    gradients itself, it needs no zero_grad.
    """
    if "within" in params:
        return {"api": PATIENT}
    of_step = _OF_STEP.get(params["inner"]) if params["outer"] == STEP else None
    return params if of_step is None else {**params, "api": of_step}


def is_loss(outer: str) -> bool:
    """Whether it is a loss, whose arguments come from the program."""
    return outer.startswith(LOSS_MODULES)
