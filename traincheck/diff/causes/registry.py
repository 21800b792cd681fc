"""The table of causes. Each row is a module; the first row that explains a difference names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.phases import Phase

Explain = Callable[[Evidence], Explanation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row.

    Attributes:
        code: its name in reports.
        phases: the phases it explains a first difference in.
        explain: the explanation; None if the evidence is for something else.
    """

    code: str
    phases: tuple[Phase, ...]
    explain: Explain


CAUSES: tuple[Cause, ...] = ()


def explain(evidence: Evidence) -> Explanation | None:
    """The likely cause of a difference; None if no row fits."""
    for cause in CAUSES:
        if evidence.item.phase in cause.phases:
            found = cause.explain(evidence)
            if found is not None:
                return found
    return None
