"""The numbers of a page, for its scripts: plain objects that become JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from traincheck.page.axis import Row
from traincheck.page.course import Course, Layers
from traincheck.page.encode import cells, curve, folded
from traincheck.schema.findings import Finding

_MOST_CELLS = 220_000  # of one map: 290 kB of text
_MOST_LAYERS = 400  # rows of one map
_MOST_CURVES = 12  # of one kind: parameter groups, ranks
SPREAD = "spread of ranks"


def numbers_of(course: Course, findings: Iterable[Finding], first: int | None) -> dict[str, Any]:
    """Everything that is drawn.

    Args:
        course: of the run.
        findings: to mark.
        first: the step of the first difference to another run; None if there is none.
    """
    return {
        "axis": {"width": course.axis.width, "columns": course.axis.columns},
        "curves": list(_curves(course)),
        "maps": list(_maps(course)),
        "evaluations": [
            index * course.axis.width
            for index, number in enumerate(_highest(course.evaluations.values()))
            if not math.isnan(number)
        ],
        "marks": [
            *({"step": m.step or 0, "kind": m.kind, "text": m.text} for m in course.marks),
            *_finding_marks(findings),
            *([{"step": first, "kind": "difference", "text": "first difference"}] if first else []),
        ],
    }


def _finding_marks(findings: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    for number, finding in enumerate(findings):
        yield {
            "step": finding.first_step or 0,
            "kind": finding.severity,
            "text": f"{finding.code}: {finding.title}",
            "finding": number,
        }


def _curves(course: Course) -> Iterator[dict[str, Any]]:
    for name, parts in course.curves.items():
        lines = [(of, rank, row) for of, ranks in parts.items() for rank, row in ranks.items()]
        several = len({rank for _, rank, _ in lines}) > 1
        for of, rank, row in lines[:_MOST_CURVES]:
            label = " ".join(text for text in (of, f"rank {rank}" if several else "") if text)
            yield {
                "name": name,
                "label": label or name,
                "low": curve(row.low),
                "high": curve(row.high),
            }


def _maps(course: Course) -> Iterator[dict[str, Any]]:
    for name, layers in course.maps.items():
        names = course.in_model_order(layers.rows)[:_MOST_LAYERS]
        left_out = len(layers.rows) - len(names)
        yield _map(course, name, names, left_out, [_peaks(layers, n) for n in names])
        if len(course.ranks) > 1:
            spread = [_spread(layers, n) for n in names]
            if any(not math.isnan(number) for row in spread for number in row.high):
                yield _map(course, f"{name}, {SPREAD}", names, left_out, spread)


def _map(
    course: Course, name: str, names: list[str], left_out: int, rows: list[Row]
) -> dict[str, Any]:
    columns, width = course.axis.columns, 1
    while columns * len(names) > _MOST_CELLS and columns > 1:
        width *= 2
        columns = -(-course.axis.columns // width)
    text, low, high = cells([folded(row, columns, width) for row in rows])
    return {
        "name": name,
        "rows": names,
        "columns": columns,
        "width": width * course.axis.width,
        "low": low,
        "high": high,
        "left_out": left_out,
        "cells": text,
    }


def _peaks(layers: Layers, name: str) -> Row:
    """The highest number of any rank."""
    rows = list(layers.rows[name].values())
    return rows[0] if len(rows) == 1 else _combined(rows, max)


def _spread(layers: Layers, name: str) -> Row:
    """How far the ranks are apart, relative to the highest."""
    return _combined(list(layers.rows[name].values()), _apart)


def _apart(numbers: list[float]) -> float:
    high = max(numbers)
    if math.isinf(high):
        return 0.0 if all(map(math.isinf, numbers)) else math.inf
    return (high - min(numbers)) / high if high else 0.0


def _combined(rows: list[Row], of: Any) -> Row:
    made = rows[0].empty()
    for index in range(max(len(row.high) for row in rows)):
        here = [row.high[index] for row in rows if index < len(row.high)]
        here = [number for number in here if not math.isnan(number)]
        made.high.append(of(here) if here else math.nan)
    return made


def _highest(rows: Iterable[Row]) -> list[float]:
    known = list(rows)
    return list(_combined(known, max).high) if known else []
