"""The gradients differ, and the loss does not: a factor, a reduction, clipping, or rounding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from traincheck.diff.causes.reading import arithmetic_facts, calls_of, norm
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase
from traincheck.schema.events import CollectiveEvent
from traincheck.schema.torch_api import Families

_ALIKE = 1e-3  # how far ratios of norms of one factor are apart
_SMALL = 1e-3
_FEWEST = 2  # gradients that must show a factor
_CLIPS = (Families.CLIP_NORM, Families.CLIP_VALUE)


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is in the gradients."""
    item = evidence.item
    if item.what == "presence":
        side = "A" if item.b is None else "B"
        return Explanation(
            code="gradient-missing",
            text=f"only {side} computes this gradient: the parameter is frozen or not used in the "
            "other run",
            fix="Compare requires_grad of the parameter and the modules that the forward calls.",
        )
    if evidence.is_ranks:
        return _between_ranks(evidence)
    reduced = [len(_reductions(side.view.collectives)) for side in (evidence.a, evidence.b)]
    if bool(reduced[0]) != bool(reduced[1]):
        side = "A" if reduced[0] else "B"
        return Explanation(
            code="reduction-missing",
            text=f"only {side} reduces gradients over ranks",
            fix="Wrap the model in DistributedDataParallel and call it, not its module.",
        )
    for family in _CLIPS:
        clips = [len(calls_of(side, family)) for side in (evidence.a, evidence.b)]
        if bool(clips[0]) != bool(clips[1]):
            side = "A" if clips[0] else "B"
            return Explanation(code="clipping", text=f"only {side} clips the gradients")
    return _scaled(evidence) or _rounded(evidence)


def _between_ranks(evidence: Evidence) -> Explanation:
    return Explanation(
        code="ranks-not-reduced",
        text="the gradient is not reduced over the ranks: the parameter is in no bucket of "
        "DistributedDataParallel, or was not used in the forward pass of a rank",
        fix="Call the wrapped model, use all parameters in each forward pass, or set "
        "find_unused_parameters=True.",
    )


def _reductions(collectives: Sequence[CollectiveEvent]) -> list[CollectiveEvent]:
    return [event for event in collectives if event.op.startswith(("all_", "reduce"))]


def _scaled(evidence: Evidence) -> Explanation | None:
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
    return Explanation(
        code="gradient-scale",
        text=f"all gradients of B are {middle:.4g} times those of A: the loss is scaled or "
        "averaged otherwise (micro-batches, token counts, world size, loss scale)",
        fix="Divide the summed loss of all micro-batches by the number of samples or tokens of all "
        "of them.",
        details=(f"{len(alike)} of {len(ratios)} gradients have this ratio",),
    )


def _rounded(evidence: Evidence) -> Explanation:
    item = evidence.item
    facts = arithmetic_facts(evidence)
    if item.size is not None and item.size > _SMALL:
        return Explanation(
            code="other-gradient",
            text="the backward pass computes something else: another graph, a hook, or a detached "
            "part",
            details=tuple(facts),
        )
    if facts:
        return Explanation(
            code="arithmetic", text=f"arithmetic, not data: {facts[0]}", details=tuple(facts[1:])
        )
    return Explanation(
        code="backward-not-deterministic",
        text="the backward pass gives other bits from the same loss: it is not deterministic",
        fix="torch.use_deterministic_algorithms(True) names operations that are not deterministic.",
    )
