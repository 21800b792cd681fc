"""Causes in the computation: modes, inputs, arithmetic, the loss and the gradients."""

from __future__ import annotations

from statistics import median
from typing import Any

from traincheck.diff.calls import call_is_backward
from traincheck.diff.causes.quantities import calls_of, clears, norm, reductions
from traincheck.diff.environment import arithmetic as arithmetic_entries
from traincheck.diff.evidence import Evidence
from traincheck.diff.items import Phase
from traincheck.diff.messages import A, B
from traincheck.schema.torch_api import Families

_ALIKE = 1e-3  # how far ratios of norms of one factor are apart
_FEWEST = 2  # gradients that must show a factor
_SHOWN = 4
_NOT_DETERMINISTIC = (
    "torch.use_deterministic_algorithms(True) names operations that are not deterministic."
)


def mode(evidence: Evidence) -> dict[str, Any] | None:
    """A module runs in training mode in one run and in evaluation mode in the other."""
    item = evidence.item
    if item.what != "mode":
        return None
    side, other = (B, A) if item.b == "eval" else (A, B)
    return {
        "text": f"{item.name} is in evaluation mode in {side} and in training mode in {other}",
        "fix": "Call model.train() before the training forward passes, after each evaluation.",
        "where": item.where,
    }


def model_input(evidence: Evidence) -> dict[str, Any] | None:
    """The model is given another value, and the batch is the same."""
    item = evidence.item
    if not item.argument or item.phase is not Phase.FORWARD:
        return None
    return {
        "text": "the batch is the same, and the model is given something else: it is changed "
        "between the loader and the model",
        "where": item.where,
    }


def autocast(evidence: Evidence) -> dict[str, Any] | None:
    """The models run under another autocast."""
    mine, yours = (
        next((call.autocast for call in side.view.calls if call.root), None)
        for side in (evidence.a, evidence.b)
    )
    return {"text": f"autocast is {mine or 'off'} in {A} and {yours or 'off'} in {B}"}


def arithmetic(evidence: Evidence) -> dict[str, Any] | None:
    """Facts of the process that change the last bits differ, and nothing else does."""
    facts = [f"{e.name} {e.a} | {e.b}" for e in arithmetic_entries(evidence.environment)]
    if not facts:
        return None
    return {
        "text": f"arithmetic, not data: {facts[0]}",
        "fix": "Use the same number of threads, flags and versions, or compare with --rtol.",
        "details": tuple(facts[1:_SHOWN]),
    }


def not_deterministic(evidence: Evidence) -> dict[str, Any] | None:
    """An operation of torch gives other bits, and all that it depends on is the same."""
    call = evidence.item.call
    is_backward = evidence.item.phase is Phase.GRADIENT
    if not is_backward and (call is None or not call.api.startswith("torch.")):
        return None
    part = "the backward pass" if is_backward else call.api.removesuffix(".forward")
    return {
        "text": f"{part} gives other bits from the same values, code and environment: it is not "
        "deterministic",
        "fix": _NOT_DETERMINISTIC,
    }


def loss_argument(evidence: Evidence) -> dict[str, Any] | None:
    """The loss function is given another argument, and the model's output is the same."""
    item = evidence.item
    if not item.argument:
        return None
    return {
        "text": f"the loss function is given another {item.argument}, and the output of the model "
        "is the same",
        "where": item.where,
    }


def loss_scale(evidence: Evidence) -> dict[str, Any] | None:
    """The loss functions of torch return the same, and backward() is given something else."""
    call = evidence.item.call
    if call is None or not call_is_backward(call):
        return None
    is_scored = any(
        call.api.startswith("torch.nn.functional.") and call.api.endswith(("loss", "entropy"))
        for call in evidence.a.view.calls
    )
    if not is_scored:
        return None
    return {
        "text": "torch's loss functions return the same, and backward() is given another value: a "
        "factor, a term, or a loss that the program computes itself",
        "where": evidence.item.where,
    }


def not_reduced(evidence: Evidence) -> dict[str, Any] | None:
    """Ranks of one run apply different gradients."""
    if not evidence.is_ranks:
        return None
    return {
        "text": "the gradient is not reduced over the ranks: the parameter is in no bucket of "
        "DistributedDataParallel, or was not used in the forward pass of a rank",
        "fix": "Call the wrapped model, use all parameters in each forward pass, or set "
        "find_unused_parameters=True.",
    }


def reduction_missing(evidence: Evidence) -> dict[str, Any] | None:
    """Only one run reduces gradients over its ranks."""
    if evidence.is_ranks:
        return None
    side = A if reductions(evidence.a.view.collectives) else B
    return {
        "text": f"only {side} reduces gradients over ranks",
        "fix": "Wrap the model in DistributedDataParallel and call it, not its module.",
    }


def not_cleared(evidence: Evidence) -> dict[str, Any] | None:
    """Only one run clears the gradients between two updates."""
    side = A if clears(evidence.a) else B
    call = next(iter(calls_of(evidence.a if side == A else evidence.b, Families.ZERO_GRAD)), None)
    return {
        "text": f"only {side} clears the gradients since the update before",
        "fix": "Call optimizer.zero_grad() once before each backward pass that begins an update.",
        "where": (call.where if call is not None else None) or "",
    }


def clipping(evidence: Evidence) -> dict[str, Any] | None:
    """Only one run clips the gradients."""
    families = (Families.CLIP_NORM, Families.CLIP_VALUE)
    calls = calls_of(evidence.a, *families), calls_of(evidence.b, *families)
    side = A if calls[0] else B
    return {
        "text": f"only {side} clips the gradients",
        "where": (calls[0] or calls[1])[0].where or "",
    }


def gradient_scale(evidence: Evidence) -> dict[str, Any] | None:
    """One factor for all gradients: accumulation, world size, or a scaled loss."""
    ratios = []
    for item in evidence.of(Phase.GRADIENT):
        a, b = norm(item.a), norm(item.b)
        if a and b and max(a, b) > 1e-7 and len(item.a["shape"]) > 0:  # noqa: PLR2004
            ratios.append(b / a)
    if len(ratios) < _FEWEST:
        return None
    middle = median(ratios)
    alike = [ratio for ratio in ratios if abs(ratio / middle - 1) <= _ALIKE]
    if abs(middle - 1) <= _ALIKE or len(alike) < 0.9 * len(ratios):
        return None
    return {
        "text": f"all gradients of {B} are {middle:.4g} times those of {A}: the loss is scaled or "
        "averaged otherwise (micro-batches, token counts, world size, loss scale)",
        "fix": "Divide the summed loss of all micro-batches by the number of samples or tokens of "
        "all of them.",
        "details": (f"{len(alike)} of {len(ratios)} gradients have this ratio",),
    }
