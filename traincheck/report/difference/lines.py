"""The parts of a difference as short texts, which text and Markdown share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traincheck.diff.causes.quantities import PLURAL
from traincheck.diff.difference import Difference, FirstDifference
from traincheck.diff.items import PHASES, Phase
from traincheck.schema.words import counted

_SHOWN_FACTS = 6
_SHOWN_CHANGES, _SHOWN_LINES = 3, 4
_CODE_WIDTH = 80
_VALUES = {
    Phase.SETTINGS: "setting",
    Phase.RNG: "generator state",
    Phase.BATCH: "batch",
    Phase.FORWARD: "call",
    Phase.LOSS: "loss",
    Phase.GRADIENT: "gradient",
    Phase.OPTIMIZER_STATE: "optimizer value",
    Phase.PARAMETER: "parameter",
    Phase.BUFFER: "buffer",
    Phase.EVALUATION: "evaluation value",
    Phase.SAVED: "save",
}
_TENTH = 0.1


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
    return f"FIRST DIFFERENCE  {place(first)}: {first.message.named(*labels(difference))}"


def place(first: FirstDifference) -> str:
    """Step, phase and rank."""
    step = f"step {first.step}"
    if first.step_b != first.step:
        step += f" (step {first.step_b} of the second run)"
    return f"{step}, {first.phase.words}, rank {first.rank}"


def rows(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    """The named rows of the report, each with its lines: where to look comes first."""
    first = difference.first
    if first is None:
        yield from _code(difference)
        yield from _closing(difference)
        return
    yield from _causes(difference)
    yield from _code(difference)
    where = first.where or (difference.cause.where if difference.cause else "")
    if where:
        yield "where", [where]
    # The two values, how far they are apart, and what agrees before them.
    a, b = labels(difference)
    yield "what", [f"{first.name}   {a} {_short(first.a)}   {b} {_short(first.b)}"]
    if first.size is not None:
        yield "size", [f"relative {size_text(first.size)}"]
    before = _before(difference)
    if before:
        yield "agrees before", [before]
    then = _then(difference)
    if then:
        yield "then", [then]
    if difference.growth:
        steps = [f"step {step} {size_text(size)}" for step, size in difference.growth.items()]
        yield "growth of loss", [", ".join(steps)]
    yield from _closing(difference)


def _causes(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    """The cause, or else what is possible, with what is not known of it."""
    cause, names = difference.cause, labels(difference)
    if cause is not None:
        yield "cause", [line.named(*names) for line in (cause.text, *cause.details)]
        if cause.fix:
            yield "fix", [cause.fix]
        return
    if not difference.candidates:
        yield "cause", ["not known: the traces prove none"]
        return
    lines = ["not proven; possible:"]
    for candidate in difference.candidates:
        lines.append(candidate.explanation.text.named(*names))
        if candidate.rivals:
            verb = "differ" if _are_several(candidate.rivals) else "differs"
            lines.append(f"  not excluded: {' and '.join(candidate.rivals)}, which {verb} too")
        if candidate.unknown:
            verb = "are" if _are_several(candidate.unknown) else "is"
            unknown = " and ".join(candidate.unknown)
            lines.append(f"  not known: whether {unknown} {verb} the same in both runs")
    yield "cause", lines


def _are_several(names: Sequence[str]) -> bool:
    return len(names) > 1 or names[0] in PLURAL


def _code(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    """The lines of the user's code that differ, the nearest first."""
    changes = difference.changes
    if not changes:
        return
    lines = []
    for change in changes[:_SHOWN_CHANGES]:
        lines.append(f"{change.place}{f' in {change.function}' if change.function else ''}")
        texts = [text for _, text in (*change.a, *change.b) if text.strip()]
        indent = min((len(text) - len(text.lstrip()) for text in texts), default=0)
        for mark, side in (("-", change.a), ("+", change.b)):
            shown = [text[indent:].rstrip() for _, text in side[:_SHOWN_LINES]]
            lines += [f"  {mark} {_short(text, _CODE_WIDTH)}" for text in shown]
            if len(side) > _SHOWN_LINES:
                lines.append(f"  {mark} and {len(side) - _SHOWN_LINES} more lines")
        if not (change.path_a and change.path_b):
            a, b = labels(difference)
            lines[-1] += f" is used by {a if change.path_a else b} only"
    if len(changes) > _SHOWN_CHANGES:
        lines.append(f"and {len(changes) - _SHOWN_CHANGES} more places")
    yield "code differs", lines


def _closing(difference: Difference) -> Iterator[tuple[str, list[str]]]:
    if difference.environment:
        yield "environment", [environment(difference)]
    if difference.first is not None:
        yield "compared", [compared(difference)]
    elif difference.same:
        yield "not compared", ["text that the programs print, and files that torch does not write"]
    if difference.notes:
        names = labels(difference)
        yield "note", [note.named(*names) for note in difference.notes]


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
    gaps = (item.gaps[0] for item in difference.then if item.phase is Phase.LOSS and item.gaps)
    gap = next(gaps, None)
    texts = []
    for count in later:
        text = f"{count.phase.words} {count.differing}/{count.compared}"
        if count.phase is Phase.LOSS and gap is not None:
            text += f" ({gap.a:.5g} | {gap.b:.5g}, {size_text(gap.relative)})"
        texts.append(text)
    return "   ".join(texts)


def size_text(size: float) -> str:
    """A relative difference: percents where it is large."""
    return f"{100 * size:.3g} %" if size >= _TENTH / 100 else f"{size:.2g}"


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
