"""The table of causes. Each row is a module; the first row that explains a difference names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traincheck.diff.causes import (
    beginning,
    contents,
    draws,
    gradients,
    loss,
    modes,
    optimizer_states,
    outputs,
    samples,
    seed,
    settings,
    skipped,
    statistics,
    updates,
)
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase

Explain = Callable[[Evidence], Explanation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row.

    Attributes:
        code: name of the row; an explanation has a narrower one.
        phases: the phases it explains a first difference in.
        explain: the explanation; None if the evidence is for something else.
    """

    code: str
    phases: tuple[Phase, ...]
    explain: Explain


_STATES = (Phase.PARAMETER, Phase.OPTIMIZER_STATE, Phase.BUFFER)
# In the order in which they are tried.
CAUSES = (
    Cause(code="seed", phases=(Phase.RNG,), explain=seed.explain),
    Cause(code="draws", phases=(Phase.RNG,), explain=draws.explain),
    Cause(code="samples", phases=(Phase.BATCH,), explain=samples.explain),
    Cause(code="contents", phases=(Phase.BATCH,), explain=contents.explain),
    Cause(code="beginning", phases=_STATES, explain=beginning.explain),
    Cause(code="modes", phases=(Phase.FORWARD,), explain=modes.explain),
    Cause(code="outputs", phases=(Phase.FORWARD,), explain=outputs.explain),
    Cause(code="loss", phases=(Phase.LOSS,), explain=loss.explain),
    Cause(code="gradients", phases=(Phase.GRADIENT,), explain=gradients.explain),
    Cause(code="settings", phases=(Phase.OPTIMIZER_STATE,), explain=settings.explain),
    Cause(
        code="skipped",
        phases=(Phase.PARAMETER, Phase.OPTIMIZER_STATE),
        explain=skipped.explain,
    ),
    Cause(code="states", phases=(Phase.OPTIMIZER_STATE,), explain=optimizer_states.explain),
    Cause(
        code="updates",
        phases=(Phase.PARAMETER, Phase.OPTIMIZER_STATE),
        explain=updates.explain,
    ),
    Cause(code="statistics", phases=(Phase.BUFFER,), explain=statistics.explain),
)


def explain(evidence: Evidence) -> Explanation | None:
    """The likely cause of a difference; None if no row fits."""
    for cause in CAUSES:
        if evidence.item.phase in cause.phases:
            found = cause.explain(evidence)
            if found is not None:
                return found
    return None
