"""Metrics as HTML for notebooks: for each key its first and last number and its curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from traincheck.schema.shown import table_html, text_html
from traincheck.schema.words import counted

_ROWS = 60
_WIDTH, _HEIGHT = 120, 18  # pixels of a curve
_POINTS = 120
_STYLE = "fill:none;stroke:currentColor;stroke-width:1.2"


def metrics_html(series: Mapping[str, Mapping[int, float]]) -> str:
    """A table of the first keys. A curve keeps the extremes; a mark shows what is not finite."""
    steps = sorted({step for values in series.values() for step in values})
    head = f"{counted(len(series), 'metric')} of {counted(len(steps), 'step')}"
    span = (steps[0], steps[-1]) if steps else (0, 0)
    table = table_html(
        ("metric", "first", "least", "largest", "last", "curve"),
        (_row(key, values, span) for key, values in list(series.items())[:_ROWS]),
    )
    left = len(series) - _ROWS
    more = f"<div>and {left:,} more: use select()</div>" if left > 0 else ""
    return f"<div><b>{head}</b>{table if series else ''}{more}</div>"


def _row(key: str, values: Mapping[int, float], span: tuple[int, int]) -> tuple[str, ...]:
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
