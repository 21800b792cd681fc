"""Sentences of *contains*: its claims, and what broke them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from traincheck.readings.variables import Variable
from traincheck.relations.contains.call_claims import LANDMARKS
from traincheck.relations.contains.change_claims import template_of
from traincheck.relations.phrasing import STEP, format_args, in_program, selector_text
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families
from traincheck.schema.words import display_name

# Usual names of models that follow another one.
_COPIES = re.compile(
    r"(^|[._])(avg|ema)([._]|$)|average|momentum|shadow|target|teacher|_k\.|#\d", re.IGNORECASE
)


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    return _change_text(params) if "role" in params else in_program(params, _call_text(params))


def _call_text(params: Mapping[str, Any]) -> str:
    outer, inner, args = params["outer"], params["inner"], params.get("args", {})
    if inner == Families.MODULE:
        return "In every training step, the model runs in training mode"
    if "within" in params:
        return f"{display_name(inner)} is called at least once in {params['within']} training steps"
    called = f"{display_name(inner)} is called{_with(args)}"
    if outer == STEP:
        return f"In every training step, {called}"
    return f"During every {display_name(outer)}, {called}"


def _with(args: Mapping[str, Any]) -> str:
    return f" with {format_args(args)}" if args else ""


def _change_text(params: Mapping[str, Any]) -> str:
    outer, role, change = template_of(params)
    who, owner = selector_text(params), selector_text({**params, "role": "parameter"})
    if outer != STEP:
        held = " it holds" if role == "parameter" else " of the parameters it holds"
        return f"During every {display_name(outer)}, every {who}{held} changes"
    if "within" in params:
        return f"Every {owner} gets a gradient within its first {params['within']} training steps"
    if role == "gradient":
        what = "appears or changes" if change == "changes" else "is cleared (as by zero_grad)"
        return f"In every training step, the gradient of every {owner} {what}"
    return f"In every training step, every {who} changes"


def call_expected(params: Mapping[str, Any], outer: str) -> str:
    """The call that a call of ``outer`` should hold."""
    called = f"{display_name(params['inner'])} is called{_with(params['args'])}"
    return f"{called} during {display_name(outer)}"


def call_observed(module: str | None) -> str:
    """The actual contents of a call of ``module``."""
    return "no such call" + (f" in {module}" if module else "")


def mode_broken(root: str) -> tuple[str, str]:
    """The expectation for a root module, and the observation."""
    observed = "in evaluation mode, and backward() computes gradients from its result"
    return f"{root} is in training mode", observed


def landmark_broken(family: str, steps: int) -> tuple[str, str, Symptom]:
    """The expectation for a landmark in so many steps, the observation, and its symptom."""
    within, observed = "in every training step", "not called in this step"
    if steps > 1:
        within = f"at least once in {steps} training steps"
        observed = f"not called in {steps} steps"
    return f"{display_name(family)} is called {within}", observed, LANDMARKS[family][1]


def change_broken(
    params: Mapping[str, Any], variable: Variable, *, requires_grad: bool, is_held: bool
) -> tuple[str, str, Symptom]:
    """The expectation for a variable, the observation, and its symptom."""
    _, role, change = template_of(params)
    if change == "cleared":
        expected = f"the gradient of {variable.name} is cleared (as by zero_grad)"
        observed = "the gradient of an earlier step is still there"
        symptom = Symptom.MISSING_ZERO_GRAD if is_held else Symptom.NOT_IN_OPTIMIZER
    else:
        expected = f"the {'gradient' if role == 'gradient' else 'value'} of {variable.name} changes"
        observed = "no gradient" if role == "gradient" else "unchanged"
        symptom = _symptom(role, requires_grad=requires_grad, is_held=is_held)
        if symptom is Symptom.FROZEN and _COPIES.search(variable.name):
            symptom = Symptom.STATE_UNCHANGED  # a copy needs no gradient
    if role != "buffer" and not requires_grad:
        observed += "; requires_grad is False"
    elif role != "buffer" and not is_held:
        observed += "; held by no optimizer"
    return expected, observed, symptom


def _symptom(role: str, *, requires_grad: bool, is_held: bool) -> Symptom:
    if role == "buffer":
        return Symptom.STATE_UNCHANGED
    if not requires_grad:
        return Symptom.FROZEN
    if role == "gradient":
        return Symptom.NO_GRADIENT
    if role == "optimizer_state":
        return Symptom.STATE_UNCHANGED
    return Symptom.NOT_UPDATED if is_held else Symptom.NOT_IN_OPTIMIZER
