"""The numbers of a page, for its scripts: plain objects that become JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from traincheck.page.axis import Row
from traincheck.page.encode import Grid, Numbers, apart, cells, curve, folded
from traincheck.page.timeline import GRADIENT, Timeline
from traincheck.schema.findings import Finding
from traincheck.schema.words import printable

_MOST_CELLS = 640_000  # of all maps: 0.85 MB of text
_MOST_OF_MAP = 220_000
_MOST_LAYERS = 400  # rows of one map
_MOST_CURVES = 6  # of one kind: parameter groups, ranks
_APART = 2  # ranks that have a curve each
_MOST_MARKS = 300
_LONGEST = 300  # characters of a name
_FIRST = (GRADIENT, "activation rms", "update over parameter")  # maps that come first
SPREAD, AGAINST = "spread of ranks", "difference to the other run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Another run beside the one of the page, on the same axis.

    Attributes:
        timeline: of the other run.
        names: of the other run and of this one.
    """

    timeline: Timeline
    names: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Map:
    """A map before its columns are chosen. of: how many of its columns share one cell."""

    name: str
    layers: Sequence[str]
    left_out: int
    numbers: Numbers
    of: int


def numbers_of(
    timeline: Timeline,
    findings: Iterable[Finding] = (),
    sides: Sides | None = None,
    first: int | None = None,
) -> dict[str, Any]:
    """Everything that is drawn.

    Args:
        timeline: of the run.
        findings: to mark.
        sides: another run to draw beside it.
        first: step of the first difference; None if there is none.
    """
    axis = timeline.axis
    marks: list[dict[str, Any]] = [
        {
            "step": finding.first_step or 0,
            "kind": finding.severity,
            "text": _text(f"{finding.code}: {finding.title}"),
            "finding": number,
        }
        for number, finding in enumerate(findings)
    ]
    marks += [
        {"step": mark.step or 0, "kind": mark.kind, "text": _text(mark.text)}
        for mark in timeline.marks
    ]
    if first is not None:
        marks.insert(0, {"step": first, "kind": "difference", "text": "first difference"})
    return {
        "axis": {"width": axis.width, "columns": axis.columns},
        "curves": list(_curves(timeline, sides)),
        "agree": [name for name, grid in timeline.maps.items() if _agrees(grid)],
        "maps": list(_encoded(timeline, _maps(timeline, sides))),
        "evaluations": [
            index * axis.width
            for index, numbers in enumerate(_columns(timeline.evaluations.values()))
            if numbers
        ],
        "marks": sorted(marks[:_MOST_MARKS], key=lambda mark: mark["step"]),
    }


def _text(name: str) -> str:
    """A name of bounded length, without characters that change how text reads."""
    return printable(name[:_LONGEST])


# -- curves


def _curves(timeline: Timeline, sides: Sides | None) -> Iterator[dict[str, Any]]:
    runs = [("", timeline)]
    if sides is not None:
        runs = [(f"A {sides.names[0]}", sides.timeline), (f"B {sides.names[1]}", timeline)]
    names = dict.fromkeys(name for _, run in runs for name in run.curves)
    for name in names:
        for side, run in runs:
            lines = _lines(run, name, _APART if sides is None else 1)
            for of, row in lines[:_MOST_CURVES]:
                label = " ".join(text for text in (side, of) if text) or name
                yield {"name": name, "label": _text(label), **row}


def _lines(timeline: Timeline, name: str, most: int) -> list[tuple[str, dict[str, str]]]:
    """The curves of one kind. Of many ranks: their median between the lowest and the highest."""
    found = []
    for of, ranks in timeline.curves.get(name, {}).items():
        if len(ranks) <= most:
            several = len(timeline.ranks) > 1 and len(ranks) > 1
            found += [
                (" ".join(filter(None, (of, f"rank {rank}" if several else ""))), _row(row))
                for rank, row in ranks.items()
            ]
        else:
            found.append((f"{of} median of {len(ranks)} ranks".strip(), _median(ranks.values())))
    return found


def _row(row: Row) -> dict[str, str]:
    high, low = curve(row.high), curve(row.low)
    return {"high": high} if low == high else {"high": high, "low": low}


def _median(rows: Iterable[Row]) -> dict[str, str]:
    known = list(rows)
    highest = _columns(known)
    lowest = [min(numbers, default=math.nan) for numbers in _columns(known, "low")]
    return {
        "middle": curve([median_low(numbers) if numbers else math.nan for numbers in highest]),
        "high": curve([max(numbers, default=math.nan) for numbers in highest]),
        "low": curve(lowest),
    }


def _columns(rows: Iterable[Row], side: str = "high") -> list[list[float]]:
    """The numbers of each column."""
    known = [getattr(row, side) for row in rows]
    length = max(map(len, known), default=0)
    return [
        [row[index] for row in known if index < len(row) and not math.isnan(row[index])]
        for index in range(length)
    ]


# -- maps


def _maps(timeline: Timeline, sides: Sides | None) -> Iterator[_Map]:
    order = {name: index for index, name in enumerate(_FIRST)}
    names = sorted(timeline.maps, key=lambda name: order.get(name, len(order)))
    chosen = {
        name: timeline.in_model_order(timeline.maps[name].rows)[:_MOST_LAYERS] for name in names
    }
    for name in names:
        grid, layers = timeline.maps[name], chosen[name]
        left_out = len(grid.rows) + len(grid.left_out) - len(layers)
        yield _Map(name, layers, left_out, grid.highest(layers), 1)
    for name in names:
        grid, layers = timeline.maps[name], chosen[name]
        other = sides.timeline.maps.get(name) if sides is not None else None
        if other is not None:
            numbers = apart(grid.highest(layers), other.highest(layers))
            yield _Map(f"{name}, {AGAINST}", layers, 0, numbers, 2)
        spread = grid.spread(layers)
        if spread is not None and (spread > 0).any():
            yield _Map(f"{name}, {SPREAD}", layers, 0, spread, 2)


def _agrees(grid: Grid) -> bool:
    """Whether several ranks have the same numbers everywhere."""
    spread = grid.spread(list(grid.rows))
    return spread is not None and bool((spread == 0).any()) and not bool((spread > 0).any())


def _encoded(timeline: Timeline, maps: Iterable[_Map]) -> Iterator[dict[str, Any]]:
    """The maps in as many columns as the page has room for."""
    chosen = list(maps)
    least = 1
    while sum(_cells(one, least) for one in chosen) > _MOST_CELLS:
        least *= 2
    for one in chosen:
        width = _width(one, least)
        numbers = folded(one.numbers, width)
        text, low, high = cells(numbers)
        yield {
            "name": one.name,
            "rows": [_text(name) for name in one.layers],
            "columns": numbers.shape[1],
            "width": width * timeline.axis.width,
            "low": low,
            "high": high,
            "left_out": one.left_out,
            "cells": text,
        }


def _width(one: _Map, least: int) -> int:
    width, columns = least, one.numbers.shape[1]
    while len(one.layers) * -(-columns // width) * one.of > _MOST_OF_MAP and width < columns:
        width *= 2
    return width


def _cells(one: _Map, least: int) -> int:
    columns: int = one.numbers.shape[1]
    return len(one.layers) * -(-columns // _width(one, least))
