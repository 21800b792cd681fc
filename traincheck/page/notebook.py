"""Findings, reports, differences and metrics as HTML for notebooks. What a trace holds is escaped.

The objects ask for it by name, in `_repr_html_`: there alone an import leads from below to here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from traincheck.diff.items import Phase
from traincheck.schema.places import where
from traincheck.schema.shown import ShownFinding, ShownReport, finding_line, report_line
from traincheck.schema.words import counted, joined, printable, printable_lines

_COLOURS = {"error": "#c62828", "warning": "#b26a00", "info": "#1565c0"}
_SAME = {True: "#2e7d32", False: "#c62828"}
_SHOWN_NAMES = 12
_SHOWN_FACTS = 20  # of the environment
_SIDES = (("-", "a"), ("+", "b"))
_LEFT = "text-align:left;vertical-align:top"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"
_ROWS = 60
_WIDTH, _HEIGHT = 120, 18  # pixels of a curve
_POINTS = 120
_STYLE = "fill:none;stroke:currentColor;stroke-width:1.2"


def finding_html(finding: ShownFinding) -> str:
    """A heading, and a table of details and the fix."""
    colour = _COLOURS.get(finding.severity, "inherit")
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th>"
        f"<td style='text-align:left'>{escape(printable(text))}</td></tr>"
        for name, text in _details(finding)
    )
    head = f"<b style='color:{colour}'>{escape(finding_line(finding))}</b>"
    return f"<div>{head}<table>{rows}</table></div>"


def findings_html(findings: Iterable[ShownFinding]) -> str:
    """One after the other."""
    return "".join(map(finding_html, findings)) or "<div>no findings</div>"


def report_html(report: ShownReport) -> str:
    """The number of findings, and each of them."""
    head = f"<b>traincheck: {escape(report_line(report))}</b>"
    return f"<div>{head}{''.join(map(finding_html, report.findings))}</div>"


def _details(finding: ShownFinding) -> Iterator[tuple[str, str]]:
    for name, text in (
        ("variables", joined(finding.variables, _SHOWN_NAMES)),
        ("expected", finding.expected),
        ("observed", finding.observed),
        ("likely cause", finding.likely_cause),
        ("fix", finding.fix),
        ("where", where(finding.evidence) or ""),
    ):
        if text:
            yield name, text


def text_html(text: str) -> str:
    """Text on one line."""
    return escape(printable(text))


def facts_html(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and texts, without the rows that have no text."""
    cells = "".join(
        f"<tr><th style='{_LEFT}'>{text_html(name)}</th>"
        f"<td style='{_LEFT};white-space:pre-line'>{escape(printable_lines(text))}</td></tr>"
        for name, text in rows
        if text
    )
    return f"<table>{cells}</table>" if cells else ""


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: the first column is a name, the others are numbers. Cells may hold HTML of ours."""
    head = "".join(
        f"<th style='{_RIGHT if index else _LEFT}'>{text_html(name)}</th>"
        for index, name in enumerate(columns)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='{_RIGHT if index else _LEFT}'>{cell}</td>"
            for index, cell in enumerate(cells)
        )
        + "</tr>"
        for cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pre_html(text: str) -> str:
    """Text of several lines, as wide as it is, in a box that scrolls."""
    style = "overflow:auto;max-height:40em;white-space:pre;line-height:1.2"
    return f"<pre style='{style}'>{escape(printable_lines(text))}</pre>"


# -- differences of runs


def difference_html(document: Mapping[str, Any]) -> str:
    """A headline, the cause and its evidence, and the phases of the step."""
    first, steps = document["first"], counted(document["steps"], "step")
    if first is not None:
        headline = f"first difference at step {first['step']:,}: {first['message']}"
    elif document["same"]:
        headline = f"no difference in {steps}, {document['closeness']}"
    else:
        headline = "nothing could be compared"
    colour = _SAME[bool(document["same"])]
    head = f"<b style='color:{colour}'>{text_html(headline)}</b>"
    phases = table_html(
        ("phase", "differing", "compared", "not comparable"),
        (
            (
                text_html(Phase(one["phase"]).words),
                *(f"{one[name]:,}" for name in ("differing", "compared", "unknown")),
            )
            for one in document["phases"]
        ),
    )
    body = facts_html(_facts(document))
    return f"<div>{head}{body}{phases if document['phases'] else ''}</div>"


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "A", document["a"]
    yield "B", document["b"]
    first, cause = document["first"], document["cause"]
    if first is not None:
        yield "in A", first["a"]
        yield "in B", first["b"]
        yield "where", first["where"] or ""
    if cause is not None:
        yield "cause", cause["text"]
        yield "", "\n".join(cause["details"])
        yield "fix", cause["fix"]
        yield "changed at", cause["where"] or ""
    for one in document["candidates"]:
        yield "possible", one["text"]
    for change in document["changes"]:
        lines = [f"{mark} {text}" for mark, side in _SIDES for text in change[side]]
        place = f"{change['place']} {change['function']}".rstrip()
        yield "code differs", "\n".join([place, *lines[:_SHOWN_FACTS]])
    environment = document["environment"]
    shown = [f"{one['name']}: {one['a']} | {one['b']}" for one in environment[:_SHOWN_FACTS]]
    if len(environment) > _SHOWN_FACTS:
        shown.append(f"and {len(environment) - _SHOWN_FACTS:,} more")
    yield "environment", "\n".join(shown)
    yield "notes", "\n".join(document["notes"])


# -- metrics: for each key its numbers and its curve


def metrics_html(series: Mapping[str, Mapping[int, float]]) -> str:
    """A table of the first keys. A curve keeps the extremes; a mark shows what is not finite."""
    steps = sorted({step for values in series.values() for step in values})
    head = f"{counted(len(series), 'metric')} of {counted(len(steps), 'step')}"
    span = (steps[0], steps[-1]) if steps else (0, 0)
    table = table_html(
        ("metric", "first", "least", "largest", "last", "curve"),
        (_metric_row(key, values, span) for key, values in list(series.items())[:_ROWS]),
    )
    left = len(series) - _ROWS
    more = f"<div>and {left:,} more: use select()</div>" if left > 0 else ""
    return f"<div><b>{head}</b>{table if series else ''}{more}</div>"


def _metric_row(key: str, values: Mapping[int, float], span: tuple[int, int]) -> tuple[str, ...]:
    points = sorted(values.items())
    finite = [value for _, value in points if math.isfinite(value)]
    least, largest = (min(finite), max(finite)) if finite else (math.nan, math.nan)
    numbers = (points[0][1], least, largest, points[-1][1]) if points else ()
    cells = [f"{number:.4g}" for number in numbers] or [""] * 4
    return (f"<code>{text_html(key)}</code>", *cells, _curve(points, span, (least, largest)))


def _curve(
    points: Sequence[tuple[int, float]], span: tuple[int, int], limits: tuple[float, float]
) -> str:
    (first, last), (least, largest) = span, limits

    def x(step: int) -> float:
        return round((step - first) / ((last - first) or 1) * _WIDTH, 1)

    def y(value: float) -> float:
        share = (value - least) / (largest - least) if largest > least else 0.5
        return round(_HEIGHT - share * _HEIGHT, 1)

    finite = [point for point in points if math.isfinite(point[1])]
    line = " ".join(f"{x(step)},{y(value)}" for step, value in _extremes(finite))
    marks = "".join(
        f"<circle cx='{x(step)}' cy='2' r='2' fill='#c62828'/>"
        for step, value in points
        if not math.isfinite(value)
    )
    box = f"width='{_WIDTH}' height='{_HEIGHT}' viewBox='-3 -3 {_WIDTH + 6} {_HEIGHT + 6}'"
    return f"<svg {box}><polyline points='{line}' style='{_STYLE}'/>{marks}</svg>"


def _extremes(points: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """At most `_POINTS` points: of each piece the least and the largest, in order."""
    size = max(1, math.ceil(2 * len(points) / _POINTS))
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        ends = {min(piece, key=lambda point: point[1]), max(piece, key=lambda point: point[1])}
        yield from sorted(ends)
