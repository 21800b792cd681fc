"""The report as text: the first finding in full, the others with their fixes, then a summary.

Readable at 80 columns and without colour; colour adds no information.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from traincheck.check.verdicts import reasons
from traincheck.report._beside import beside
from traincheck.report._places import located
from traincheck.report.lines import COLOURS, page, paragraph, table
from traincheck.report.sentences import checked, doubt, lack, notes_of, suppressions, why_accepted
from traincheck.schema.findings import TIERS, Finding, Report, Verdict
from traincheck.schema.places import in_package, where
from traincheck.schema.shown import advice_text, tally_parts
from traincheck.schema.words import all_printable, counted, joined, printable

_SHOWN_NAMES = 12
_REASONS = 4  # why checks could not be decided: up to so many are told one by one


def write_text(report: Report, stream: TextIO) -> None:
    """Write the report as text; in colour when ``stream`` is a terminal that shows it."""
    report, console = all_printable(report), page(stream)
    shown = [finding for finding in report.findings if report.presentation.shows(finding)]
    with console.capture() as written:
        if shown:
            first, *others = shown
            head, *rest = tally_parts(report.tally)
            if report.tally["finding"]:
                head += f", the first {_at(first.first_step)}"
            paragraph(console, Text(f"{'; '.join([head, *rest])}.".capitalize(), style="bold"))
            console.print()
            in_full = shown if report.presentation.verbose else [first]
            for finding in in_full:
                _in_full(console, finding, report)
            _others(console, "Then:", others if in_full is not shown else (), report)
        if not shown or lack(report):
            _no_findings(console, report, known=bool(shown))
        if report.presentation.suppressed:
            _others(console, "Suppressed:", report.suppressed, report)
        _summary(console, report, advice=[f for f in report.findings if f not in shown])
    # Tables are padded to their width; a file needs no padding.
    stream.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


def one_line(finding: Finding) -> str:
    """A finding as ``step 3: TC101 error: title``."""
    return printable(
        f"{_at(finding.first_step)}: {finding.code} {kind_of(finding)}: {finding.title}"
    )


def _in_full(console: Console, finding: Finding, report: Report) -> None:
    head = Text(kind_of(finding).upper(), style=COLOURS[finding.severity])
    head.append(f" {finding.code}: ", style="bold").append(finding.title, style="bold")
    paragraph(console, head)
    console.print()
    widest = table(console, finding_rows(finding, report), indent=2)
    code = write_place(console, finding, report, indent=2, width=widest)
    if code:
        paragraph(console, Text(code, style="italic"), indent=widest + 6)
    console.print()
    if finding.comparison:
        left, right = finding.compared
        shown = beside(finding.comparison, console, (left, f"{right} {_at(finding.first_step)}"))
        console.print(Padding(shown, (0, 0, 1, 2)))
    if report.presentation.verbose and finding.also:
        _also(console, finding)


def write_fix(console: Console, finding: Finding, report: Report, indent: int) -> None:
    """The fix, whole, and the line to look at."""
    if finding.fix:
        table(console, [(f"{'fix':<{len('where')}}", finding.fix)], indent=indent)
    write_place(console, finding, report, indent=indent, width=len("where"))


def write_place(
    console: Console, finding: Finding, report: Report, *, indent: int, width: int
) -> str:
    """The line to look at, where one is known. Gives the code there.

    Not in a table: a path may hold spaces.
    """
    place, code = located(finding, report)
    if place is not None:
        by_name = "" if where(finding.evidence) else " (found by its name)"
        head = Text(" " * indent).append(f"{'where':<{width}}", style="dim")
        line = head.append(printable(f"  {in_package(place.path)}:{place.line}{by_name}"))
        console.print(line, soft_wrap=True)
    return printable(code)


def _also(console: Console, finding: Finding) -> None:
    """Every check that failed for the same reason."""
    console.print(Text("  Also failed:", style="bold"))
    for also in finding.also:
        times = _times(also.violations, also.subjects)
        names = f" ({joined(also.subjects, _SHOWN_NAMES)})" if also.subjects else ""
        line = f"{_at(also.first_step)}, {times}: {also.code}: {also.text}{names}"
        paragraph(console, Text(line), indent=4)
    console.print()


def finding_rows(finding: Finding, report: Report) -> Iterator[tuple[str, str]]:
    """Names and texts of the details of a finding, without its place."""
    yield "when", _span(finding, report.steps)
    if finding.kind != "rule":  # the title of an invariant lacks its claim
        yield "what", finding.message
    if finding.variables:
        yield "variables", joined(finding.variables, _SHOWN_NAMES)
    for name, text in (
        ("module", finding.subject.module),
        ("call", finding.subject.api),
        ("expected", finding.expected),
        ("observed", finding.observed),
        ("likely cause", finding.likely_cause),
        ("fix", finding.fix),
        ("rarity", rarity(finding)),
    ):
        if text:
            yield name, text
    if finding.explains:
        counts = Counter(also.code for also in finding.also)
        codes = ", ".join(f"{code} {n}" if n > 1 else code for code, n in sorted(counts.items()))
        hint = "" if report.presentation.verbose else "; list them with --verbose"
        listed = f" ({codes}{hint})" if codes else ""
        yield "also failed", f"{counted(len(finding.explains), 'more check')}{listed}"


def _span(finding: Finding, steps: int) -> str:
    """When it was seen, and how often; with many variables and checks, in how many steps."""
    first, last = finding.first_step, finding.last_step
    when = _at(first)
    if last is not None and last != first:
        when = f"steps {first} to {last}" if first is not None else f"{when} to step {last}"
    times = _times(finding.violations, finding.variables)
    if first is not None and last is not None and first < last:
        is_all = finding.steps == finding.violations or finding.steps > last - first
        times = "in " if is_all else "in at least "
        times += f"{finding.steps:,} of " if finding.steps <= steps else ""
        times += counted(max(finding.steps, steps), "step")
    return f"{when} (rank {finding.rank}, {finding.stage}), {times}"


def _times(violations: int, names: Sequence[str]) -> str:
    """How often: a violation of each of several variables at once is one time."""
    times = -(-violations // max(1, len(names)))
    return "once" if times == 1 else f"{times:,} times"


def _others(console: Console, head: str, findings: Sequence[Finding], report: Report) -> None:
    """A line for each, and the fix of those that are not suppressed."""
    if not findings:
        return
    console.print(Text(head, style="bold"))
    for finding in findings:
        line = Text(f"{_at(finding.first_step)}: ").append(
            f"{finding.code} {kind_of(finding)}", style=COLOURS[finding.severity]
        )
        accepted = f" ({why_accepted(finding)})" if finding.suppressed else ""
        paragraph(console, line.append(f": {finding.title}{accepted}"), indent=2)
        if not finding.suppressed:
            write_fix(console, finding, report, indent=4)
    console.print()


def _no_findings(console: Console, report: Report, *, known: bool) -> None:
    """The result without a finding, or why too little was checked. known: of a finding."""
    found = "No findings except suppressed ones" if report.suppressed else "No findings"
    if report.tally["advice"]:
        found += f", {advice_text(report.tally['advice'])}"
    but = doubt(report)
    if known:
        text = f"{but[:1].upper()}{but[1:]}."
    else:
        text = f"{found}, but {but}." if but else f"{found}: {checked(report)}."
    paragraph(console, Text(text, style="bold yellow" if but else "bold green"))
    lacking = lack(report)
    if lacking:
        table(console, [("fix", lacking.fix)], indent=2)


def _summary(console: Console, report: Report, advice: Sequence[Finding]) -> None:
    counts = ", ".join(f"{number:,} {word}" for word, number in verdict_counts(report).items())
    size = (
        f"{counted(report.events, 'event')}, {counted(report.steps, 'step')}, "
        f"{counted(report.ranks, 'rank')}"
    )
    rows = [("run", size), ("checks", counts)]
    if advice:
        rows.append(("advice", f"{folded(advice)}; show with --show-info"))
    if report.suppressed:
        hint = "" if report.presentation.suppressed else "; show them with --show-suppressed"
        rows.append(("findings", f"{suppressions(report)}{hint}"))
    table(console, [*rows, *(("note", note) for note in _notes(report))])


def verdict_counts(report: Report) -> dict[str, int]:
    """The number of checks with each verdict; those of observations and advice are apart."""
    tiers: dict[str, str] = {}  # of each broken check: the first of its findings is the gravest
    for tier in TIERS:
        for finding in (*report.findings, *report.suppressed):
            if finding.tier == tier:
                for check in (finding.check, *finding.explains):
                    tiers.setdefault(check, tier)
    milder = Counter(
        tier
        for check, tier in tiers.items()
        if tier != "finding" and report.verdicts.get(check) is Verdict.VIOLATED
    )
    counts: dict[str, int] = {}
    for verdict in Verdict:
        name = verdict.value.replace("_", " ")
        before = " before training" if report.is_empty and report.count(verdict) else ""
        counts[f"{name}{before}" if verdict is Verdict.HELD else name] = report.count(verdict)
        if verdict is Verdict.VIOLATED:
            counts["violated"] -= milder.total()
            counts |= {
                name: milder[tier]
                for name, tier in (("observed", "observation"), ("advice", "advice"))
                if milder[tier]
            }
    return counts


def folded(advice: Sequence[Finding]) -> str:
    """``3 (TC905, TC907)``."""
    return f"{len(advice):,} ({joined(sorted({finding.code for finding in advice}), _SHOWN_NAMES)})"


def kind_of(finding: Finding) -> str:
    """The severity, or "observation" or "advice"."""
    return finding.severity if finding.tier == "finding" else finding.tier


def rarity(finding: Finding) -> str:
    """How many healthy programs have this observation, too."""
    if finding.tier != "observation" or finding.healthy is None:
        return ""
    seen, programs = finding.healthy
    return f"{seen or 'none'} of {programs:,} healthy programs {'has' if seen == 1 else 'have'} it"


def _notes(report: Report) -> list[str]:
    """The notes; many reasons why checks were not decided are folded into one line."""
    notes, why = notes_of(report), reasons(report.unobservable)
    if report.presentation.verbose or len(why) <= _REASONS:
        return notes
    lacking = (
        f"{len(report.unobservable)} checks not observable: the trace lacks events that they need "
        f"({len(why)} reasons; list them with --verbose)"
    )
    return [*(note for note in notes if note not in why), lacking]


def _at(step: int | None) -> str:
    return "before the first step" if step is None else f"at step {step}"
