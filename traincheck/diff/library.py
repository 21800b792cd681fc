"""`traincheck.diff`, and the choices that it shares with the command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from traincheck.diff.choices import Closeness, Exact, Names, Spread, Within
from traincheck.diff.difference import Difference
from traincheck.diff.engine import Options, diff_ranks, diff_runs
from traincheck.diff.items import Phase
from traincheck.diff.run_facts import Run
from traincheck.errors import UsageError, nearest

_NAMES = {phase.value: phase for phase in Phase} | {
    "grad": Phase.GRADIENT,
    "param": Phase.PARAMETER,
    "optimizer": Phase.OPTIMIZER_STATE,
    "loader": Phase.BATCH,
}
RTOL, ATOL = 1e-5, 1e-8


def diff(  # noqa: PLR0913  # they are the options of the command
    a: str | Path,
    b: str | Path | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    control: Iterable[str | Path] = (),
    spread: float = 3.0,
    rank: str = "",
    steps: str = "",
    until: str | int = "",
    phase: Iterable[str] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    map: Iterable[str] = (),
    resume: bool = True,
    ranks: bool = False,
) -> Difference:
    """Compare two recorded runs, and find the first difference and its likely cause.

    Args:
        a: directory of the run that is right, or came first.
        b: directory of the other; None with ``ranks``.
        rtol: relative tolerance, as in `torch.testing.assert_close`. None: bit for bit, or 1e-5 if
            ``atol`` is given.
        atol: absolute tolerance; 1e-8 if only ``rtol`` is given.
        control: runs of the same program as A. What they differ by from A is noise.
        spread: how many times the noise still counts as alike.
        rank: ``"0:1"`` compares rank 0 of A with rank 1 of B; empty for all ranks that both have.
        steps: ``"10:20"`` compares these steps of A; empty for all.
        until: the step before which the comparison ends: a number, ``"resume"`` or ``"resume+3"``.
        phase: the phases that are compared; empty for all.
        select: patterns of names that are compared, ``*`` matches anything; empty for all.
        ignore: patterns of names that are not.
        map: ``OLD=NEW``: a part of a name in A, and the same in B.
        resume: whether a run that continues the other is aligned with it.
        ranks: compare the ranks of A with its rank 0.

    Raises:
        TraceFormatError: a directory is not a run.
        UsageError: an option has a value that cannot be used.
    """
    options = Options(
        closeness=closeness_of(rtol, atol, spread if control else None),
        names=Names(map, select, ignore),
        ranks=ranks_of(rank),
        first=steps_of(steps)[0],
        last=steps_of(steps)[1],
        phases=phases_of(phase),
        finds_resume=resume,
        until=until_of(until),
    )
    if ranks:
        if b is not None:
            raise UsageError("ranks of one run are compared", fix="name one run with --ranks")
        return diff_ranks(Run(a), options)
    if b is None:
        raise UsageError("there is one run, and nothing to compare it with", fix="name two runs")
    return diff_runs(Run(a), Run(b), options, [Run(path) for path in control])


def closeness_of(rtol: float | None, atol: float | None, spread: float | None) -> Closeness:
    """When values count as alike.

    Raises:
        UsageError: a number is negative, or a tolerance and controls are given.
    """
    for name, value in (("rtol", rtol), ("atol", atol), ("spread", spread)):
        if value is not None and not value >= 0:
            raise UsageError(f"{name} is {value}", fix="make it a number that is not negative")
    if spread is not None:
        if rtol is not None or atol is not None:
            raise UsageError(
                "a tolerance and control runs cannot be used together", fix="leave one of them out"
            )
        return Spread(spread)
    if rtol is None and atol is None:
        return Exact()
    return Within(RTOL if rtol is None else rtol, ATOL if atol is None else atol)


def phases_of(names: Iterable[str]) -> frozenset[Phase]:
    """The phases of these names; all if there is none.

    Raises:
        UsageError: there is no such phase.
    """
    found = set()
    for name in names:
        if name not in _NAMES:
            raise UsageError(
                f"{name!r} is not a phase",
                fix=f"did you mean {nearest(name, _NAMES)}? phases: {', '.join(Phase)}",
            )
        found.add(_NAMES[name])
    return frozenset(found or Phase)


def ranks_of(text: str) -> tuple[int, int] | None:
    """``"0:1"`` or ``"0"`` as the ranks of A and B.

    Raises:
        UsageError: it is neither.
    """
    if not text:
        return None
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):  # noqa: PLR2004
        raise UsageError(f"rank {text!r} is not a rank", fix="write 0, or 0:1 for 0 of A, 1 of B")
    return int(parts[0]), int(parts[-1])


def steps_of(text: str) -> tuple[int, int | None]:
    """``"10:20"`` as the first step and the one after the last.

    Raises:
        UsageError: it is no range.
    """
    first, colon, last = text.partition(":")
    if any(part and not part.isdigit() for part in (first, last)) or (first and not colon):
        raise UsageError(f"steps {text!r} is not a range", fix="write FIRST:END, e.g. 0:100")
    return int(first or 0), int(last) if last else None


def until_of(value: str | int) -> str:
    """A step, "resume" or "resume+3".

    Raises:
        UsageError: it is none of these.
    """
    text = str(value)
    start, plus, more = text.partition("+")
    is_resume = start == "resume" and (more.isdigit() or not plus)
    if text and not (is_resume or text.isdigit()):
        raise UsageError(f"until {text!r} is not a step", fix="write 20, or resume+3")
    return text
