"""The parts of a difference as short texts, which text and Markdown share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from traincheck.diff.difference import Difference, FirstDifference, PhaseCount
from traincheck.diff.phases import PHASES, Phase
from traincheck.schema.words import counted

_SHOWN_FACTS = 6
_VALUES = {
    Phase.RNG: "generator state",
    Phase.BATCH: "batch",
    Phase.FORWARD: "call",
    Phase.LOSS: "loss",
    Phase.GRADIENT: "gradient",
    Phase.OPTIMIZER_STATE: "optimizer value",
    Phase.PARAMETER: "parameter",
    Phase.BUFFER: "buffer",
}
_TENTH = 0.1
_SIDE = re.compile(r"(?<![^\s(])[AB](?=$|[\s,:;)]|\.$|'s)")  # "A" and "B" as words


def labels(difference: Difference) -> tuple[str, str]:
    """Names of the two runs: the last parts of their paths, if these differ."""
    if difference.labels[0]:
        return difference.labels
    a, b = Path(difference.a).name, Path(difference.b).name
    return (a, b) if a and b and a != b else (difference.a, difference.b)


def headline(difference: Difference) -> str:
    """The first difference in one line."""
    first = difference.first
    if first is None:
        if difference.same:
            return f"SAME  {compared(difference)}"
        return "NOTHING COMPARED  the runs have no recorded value in common"
    return f"FIRST DIFFERENCE  {place(first)}: {in_names(first.message, difference)}"


def place(first: FirstDifference) -> str:
    """Step, phase and rank."""
    step = f"step {first.step}"
    if first.step_b != first.step:
        step += f" (step {first.step_b} of the second run)"
    return f"{step}, {first.phase.words}, rank {first.rank}"


def in_names(text: str, difference: Difference) -> str:
    """A sentence about A and B with the names of the runs."""
    a, b = labels(difference)
    return _SIDE.sub(lambda found: a if found[0] == "A" else b, text)


def rows(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    """The named rows of the report, each with its lines."""
    first = difference.first
    if first is None:
        yield from _closing(difference)
        return
    a, b = labels(difference)
    yield "what", [f"{first.name}   {a} {first.a}   {b} {first.b}"]
    if first.size is not None:
        yield "size", [f"relative {size_text(first.size)}"]
    before = _before(difference)
    if before:
        yield "agrees before", [before]
    cause = difference.cause
    if cause is not None:
        yield "likely cause", [in_names(cause.text, difference)]
        if cause.details:
            yield "", [in_names(line, difference) for line in cause.details]
        if cause.fix:
            yield "fix", [cause.fix]
    where = first.where or (cause.where if cause else "")
    if where:
        yield "where", [where]
    then = _then(difference)
    if then:
        yield "then", [then]
    if difference.growth:
        steps = [f"step {step} {size_text(size)}" for step, size in difference.growth.items()]
        yield "growth of loss", [", ".join(steps)]
    yield from _closing(difference)


def _closing(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    if difference.environment:
        yield "environment", [environment(difference)]
    if difference.first is not None:
        yield "compared", [compared(difference)]
    if difference.notes:
        yield "note", [in_names(note, difference) for note in difference.notes]


def resumed(difference: Difference) -> str:
    """How the second run continues the first; empty if it does not."""
    resume = difference.resume
    if resume is None:
        return ""
    a, b = labels(difference)
    where = f" (checkpoint {Path(resume.path).name})" if resume.path else ""
    if not resume.parameters:
        return f"{b} loads a checkpoint that {a} wrote before step {resume.step}{where}"
    return (
        f"{b} continues {a} at step {resume.step}: {resume.parameters} of {resume.of} parameters "
        f"looked up are those of {a} there{where}"
    )


def environment(difference: Difference) -> str:
    """The facts that differ, in one line."""
    entries = difference.environment
    shown = [f"{e.name} {_short(e.a)} | {_short(e.b)}" for e in entries[:_SHOWN_FACTS]]
    more = f" and {len(entries) - _SHOWN_FACTS} more" if len(entries) > _SHOWN_FACTS else ""
    verb = "differs" if len(entries) == 1 else "differ"
    return f"{len(entries)} {verb}: {', '.join(shown)}{more}"


def compared(difference: Difference) -> str:
    """How much was compared, and what could not be."""
    parts = [counted(difference.steps, "step"), f"compared {difference.closeness}"]
    if difference.first is not None and difference.after:
        alike = difference.alike_after or "none"
        parts.append(f"{difference.after:,} of them after the first difference, {alike} alike")
    values = [
        _counted_values(phase, difference.compared[phase])
        for phase in PHASES
        if difference.compared.get(phase)
    ]
    text = f"{'; '.join(parts)}: {', '.join(values)}" if values else "; ".join(parts)
    unknown = [
        _counted_values(phase, difference.unknown[phase])
        for phase in PHASES
        if difference.unknown.get(phase)
    ]
    return f"{text}; not comparable: {', '.join(unknown)}" if unknown else text


def _counted_values(phase: Phase, number: int) -> str:
    return counted(number, _VALUES[phase]).replace("losss", "losses")


def _before(difference: Difference) -> str:
    """The phases before the first difference, all of whose values are alike."""
    first = difference.first
    assert first is not None
    earlier = PHASES[: PHASES.index(first.phase)]
    counts = {count.phase: count for count in difference.phases}
    parts = [
        f"{phase.words} {counts[phase].compared}/{counts[phase].compared}"
        for phase in earlier
        if phase in counts and counts[phase].compared and not counts[phase].differing
    ]
    return "   ".join(parts)


def _then(difference: Difference) -> str:
    first = difference.first
    assert first is not None
    later = [c for c in difference.phases if PHASES.index(c.phase) >= PHASES.index(first.phase)]
    return "   ".join(_ratio(count) + _loss(count, difference) for count in later)


def _ratio(count: PhaseCount) -> str:
    return f"{count.phase.words} {count.differing}/{count.compared}"


def _loss(count: PhaseCount, difference: Difference) -> str:
    if count.phase is not Phase.LOSS:
        return ""
    for item in difference.then:
        if item.phase is Phase.LOSS and item.gaps:
            gap = item.gaps[0]
            return f" ({gap.a:.5g} | {gap.b:.5g}, {size_text(gap.relative)})"
    return ""


def size_text(size: float) -> str:
    """A relative difference: percents where it is large."""
    return f"{100 * size:.3g} %" if size >= _TENTH / 100 else f"{size:.2g}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004
