"""How many healthy programs have an observation: a rule of severity info that is not taste.

Counted over healthy pipelines of benchmarks/field and benchmarks/silent_bugs that train in one
process, one program one vote. An observation that few of them have is shown without an option, the
rarest first.
"""

from __future__ import annotations

PROGRAMS = 104  # healthy programs that were recorded
_SEEN = {"TC214": 1}  # all others: none
_TASTE = "TC9"  # advice on matters of taste, which most programs have


def healthy_programs(code: str) -> tuple[int, int] | None:
    """How many of how many healthy programs have it; None if it is advice, or is learned."""
    if not code.startswith("TC") or code.startswith(_TASTE):
        return None
    return _SEEN.get(code, 0), PROGRAMS
