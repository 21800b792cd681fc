"""The parameters differ after an update from the same gradients, states and settings."""

from __future__ import annotations

from traincheck.diff.causes.reading import arithmetic_facts
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.phases import Phase

_ROUNDING = 1e-5
_FLAGS = ("fused", "foreach", "capturable", "differentiable")


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is in a parameter or an optimizer state, after the gradients."""
    if evidence.item.is_opening or evidence.item.what == "setting":
        return None
    flags = [_flags(side) for side in (evidence.a, evidence.b)]
    size = max((item.size or 0.0 for item in evidence.items), default=0.0)
    if flags[0] != flags[1] and size <= _ROUNDING:
        return Explanation(
            code="update-arithmetic",
            text=f"arithmetic, not data: the update is computed {_words(flags[0])} in A and "
            f"{_words(flags[1])} in B",
            fix="Set the same fused= and foreach=, or compare with --rtol.",
        )
    if evidence.item.phase is Phase.OPTIMIZER_STATE:
        facts = arithmetic_facts(evidence)
        return Explanation(
            code="state-update",
            text="the optimizer computes another state from the same gradients and settings",
            details=tuple(facts),
        )
    return _written(evidence)


def _written(evidence: Evidence) -> Explanation:
    count = len(evidence.of(Phase.PARAMETER))
    names = f"{count} parameter" + ("" if count == 1 else "s")
    differ = "differs" if count == 1 else "differ"
    if evidence.is_ranks:
        return Explanation(
            code="ranks-drift",
            text=f"{names} of the rank leave those of rank 0: written on one rank, or updated from "
            "gradients that are not reduced",
            fix="Wrap all trained modules in DistributedDataParallel, and write parameters on all "
            "ranks alike.",
        )
    return Explanation(
        code="written-outside",
        text=f"{names} {differ} after the same gradients, optimizer states and settings: written "
        "outside of the optimizer, between the gradient and the end of the step",
        fix="Look for code under torch.no_grad() that writes parameters, such as a clamp, an "
        "average or a copy.",
    )


def _flags(side: Side) -> dict[str, object]:
    events = side.facts.optimizers
    if not events or not events[-1].groups:
        return {}
    hyper = events[-1].groups[0].hyper
    return {name: hyper.get(name) for name in _FLAGS if hyper.get(name) is not None}


def _words(flags: dict[str, object]) -> str:
    chosen = [name for name, value in flags.items() if value]
    return f"with {chosen[0]}=True" if chosen else "with the default"
