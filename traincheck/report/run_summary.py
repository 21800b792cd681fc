"""The summary at the end of `traincheck run`: findings with their fixes, then what was watched.

`traincheck check` writes the full report. Here all texts but fixes and commands are shortened.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from traincheck.check.run_overview import RunOverview, suspect_note
from traincheck.facts.card import Line, among_programs
from traincheck.report.lines import COLOURS, page, paragraph, table
from traincheck.report.sentences import doubt, lack, notes_of, suppressions
from traincheck.report.text_report import folded, kind_of, write_fix
from traincheck.rules.docs import theme_of
from traincheck.schema.findings import Finding, Report, Verdict
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments, Status
from traincheck.schema.probes.words import EXPERIMENTS
from traincheck.schema.shown import tally_text
from traincheck.schema.words import all_printable, counted, joined, printable

_NAMED_MODELS = 3  # models
_WORDS = {
    Experiments.REPLAY: "unchanged copies agree",
    **{name: each.summary for name, each in EXPERIMENTS.items()},
}


def probe_rows(probes: Sequence[ProbeEvent]) -> Iterator[tuple[str, str]]:
    """Label and text of each row; none if nothing was probed."""
    if not probes:
        return
    replays = [event for event in probes if event.name == Experiments.REPLAY]
    if replays:
        copies = sum(event.numbers.get("copies", 0.0) for event in replays)
        seconds = sum(event.numbers.get("cpu_s", 0.0) for event in replays)
        models = joined(list(dict.fromkeys(event.model for event in replays)), _NAMED_MODELS)
        steps = len({event.step for event in replays})
        yield (
            "probed",
            f"{models} in {counted(steps, 'step')}: {copies:,.0f} copies of the process, "
            f"{seconds:.1f} s of CPU",
        )
    held = _by_model(probes, Status.HELD)
    for name, models_of in held.items():
        if name != Experiments.REPLAY:
            yield "probe held", f"{_WORDS.get(name, name)}: {joined(models_of, _NAMED_MODELS)}"
    for text in dict.fromkeys(e.detail["by_design"] for e in probes if "by_design" in e.detail):
        yield "left out", f"functions whose gradient is not compared: {text}"
    unknown = [e for e in probes if e.name not in held and e.status == Status.NOT_OBSERVABLE]
    for reason, words in _by_reason(unknown).items():
        yield "not observable", f"{reason} ({joined(words, len(_WORDS))})"
    failed = _by_reason([event for event in probes if event.status == Status.FAILED])
    for reason, words in failed.items():
        yield "failed", f"a bug in traincheck: {reason} ({joined(words, _NAMED_MODELS)})"
    if failed:
        yield "fix", "report it to whoever gave you this copy, with this output"


def _by_reason(probes: Sequence[ProbeEvent]) -> dict[str, list[str]]:
    """Reason -> experiments in words."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in probes:
        words = _WORDS.get(event.name, event.name)
        if words not in found[event.reason]:
            found[event.reason].append(words)
    return found


def _by_model(probes: Sequence[ProbeEvent], status: str) -> dict[str, list[str]]:
    """Experiment -> models with this result and no other."""
    moved = {(event.name, event.model) for event in probes if event.status == Status.MOVED}
    found: dict[str, list[str]] = {}
    for event in probes:
        if event.status == status and (event.name, event.model) not in moved:
            models = found.setdefault(event.name, [])
            if event.model not in models:
                models.append(event.model)
    return found


_FINDINGS = 20  # as many faults at once are not read one by one
_NAMED = 12  # codes of checks
_USES = 3  # models, optimizers
_NOTES = 3
_FACTS = 3
_LONGEST = 200  # characters of one text, three lines
_TITLE = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The content of a summary.

    Attributes:
        trace: where the events are, as a sentence.
        check: the command that gives the full report.
        is_probed: whether experiments were asked for.
        scope: what was checked, if that is not all rules.
        facts: the most unusual ones, told where no rule finds anything.
        card: the command that shows all facts; empty if the trace is not kept.
    """

    report: Report
    watched: RunOverview
    trace: str
    check: str = ""
    is_probed: bool = False
    scope: str = ""
    facts: Sequence[Line] = ()
    card: str = ""


def write_run_summary(summary: RunSummary, stream: TextIO) -> None:
    """Write it as text; in colour when ``stream`` is a terminal that shows it."""
    summary, console = all_printable(summary), page(stream)
    with console.capture() as written:
        paragraph(console, Text.assemble(("traincheck: ", "dim"), _headline(summary.report)))
        if summary.scope:
            paragraph(console, Text(summary.scope), indent=2)
        report = summary.report
        shown = [finding for finding in report.findings if report.presentation.shows(finding)]
        for finding in shown[:_FINDINGS]:
            _finding(console, finding, report)
        left = len(shown) - _FINDINGS
        if left > 0:
            paragraph(console, Text(f"and {left} more: see the full report", style="dim"), indent=2)
        table(console, _rows(summary), indent=2)
    stream.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())
    stream.flush()


def _headline(report: Report) -> Text:
    found, but = tally_text(report.tally, advice=False), doubt(report)
    if report.tally["finding"]:
        colour = COLOURS[report.findings[0].severity]
    elif but:
        return Text(f"{found}, but {but}", style="bold yellow")
    else:
        colour = COLOURS["info"] if report.tally["observation"] else "bold green"
    return Text(f"{found} in {counted(report.steps, 'step')}", style=colour)


def _finding(console: Console, finding: Finding, report: Report) -> None:
    step = finding.first_step
    at = "before the first step" if step is None else f"at step {step}"
    head = Text(f"{finding.code} {kind_of(finding)} ", style=COLOURS[finding.severity])
    head.append(f"{at}: {_cut(finding.title, _TITLE)}", style="bold")
    paragraph(console, head, indent=2)
    write_fix(console, finding, report, indent=4)


def _rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    report, watched = summary.report, summary.watched
    lacking = lack(report)
    if lacking:
        yield "fix", lacking.fix
    if report.events:
        yield "watched", _cut(_watched(report, watched))
    for label, text in probe_rows(watched.probes):
        yield label, _cut(text)
    if summary.is_probed and not watched.probes:
        yield "not probed", "no model with parameters was called in three steps of training"
    held, idle = report.count(Verdict.HELD), report.count(Verdict.NOT_TRIGGERED)
    if held and not report.is_empty:  # else these are about what precedes training
        themes = f": {_themes(report, Verdict.HELD)}" if report.presentation.verbose else ""
        yield "held", f"{counted(held, 'check')}{themes}"
    if idle:
        yield "not triggered", f"{counted(idle, 'check')}: their conditions never occurred"
    if report.suppressed:
        yield "findings", f"{suppressions(report)}: see the full report"
    advice = [one for one in report.findings if not report.presentation.shows(one)]
    if advice:
        yield "advice", f"{folded(advice)}; show: {summary.check} --show-info"
    yield from unusual_rows(report, summary.facts, summary.card)
    suspect = suspect_note(report)
    if suspect:
        yield "suspect", suspect
    notes = [note for note in notes_of(report) if note != suspect]
    for text in notes[:_NOTES]:
        yield "note", _cut(text)
    if len(notes) > _NOTES:
        yield "note", f"and {counted(len(notes) - _NOTES, 'more note')}"
    yield "trace", summary.trace


def unusual_rows(report: Report, facts: Sequence[Line], card: str) -> Iterator[tuple[str, str]]:
    """Label and text of rows with the most unusual facts; none beside a finding.

    Args:
        report: of the run.
        facts: the unusual ones, the most unusual first.
        card: the command that shows all of them; empty if the trace is not kept.
    """
    if not facts or report.tally["finding"]:
        return
    for line in facts[:_FACTS]:
        yield "unusual", printable(f"{_cut(line.text)} ({among_programs(line)})")
    how = f"all: {card}" if card else "for all, keep the trace with --keep"
    number = counted(len(facts), "fact")
    yield "facts", f"{number} that few healthy programs have, no verdict; {how}"


def write_unusual(report: Report, facts: Sequence[Line], card: str, stream: TextIO) -> None:
    """Write the rows of `unusual_rows` behind a report as text; nothing if there are none."""
    rows, console = list(unusual_rows(report, facts, card)), page(stream)
    if rows:
        with console.capture() as written:
            console.print()
            table(console, rows)
        stream.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


def _watched(report: Report, watched: RunOverview) -> str:
    trainers = len(watched.processes) - len(watched.workers)
    parts = [f"{counted(trainers, 'process')}, {counted(report.ranks, 'rank')}"]
    if watched.workers:
        parts[0] += f", {counted(len(watched.workers), 'loader worker')}"
    parts[0] += f", {counted(report.steps, 'step')}"
    models = [
        f"{printable(name)} ({counted(len(sizes), 'parameter')}, {sum(sizes.values()):,} values)"
        for name, sizes in sorted(watched.parameters.items())
        if sizes
    ]
    optimizers = [
        printable(f"{name} {cls.rpartition('.')[2]}")
        for name, cls in sorted(watched.optimizers.items())
    ]
    parts += [joined(group, _USES) for group in (models, optimizers) if group]
    return "; ".join(parts)


def _themes(report: Report, verdict: Verdict) -> str:
    """The number of checks of each theme with this verdict."""
    counts: Counter[str] = Counter()
    for check, found in report.verdicts.items():
        info = report.infos.get(check)
        if found is verdict and info is not None:
            counts[theme_of(info.code).lower() if info.kind == "rule" else "invariants"] += 1
    return ", ".join(f"{theme} {number}" for theme, number in counts.items())


def _cut(text: str, longest: int = _LONGEST) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - 3].rpartition(' ')[0] or text[: longest - 4]} ..."
