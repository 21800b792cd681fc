"""The metrics of a run as a table: a row for each name, step and process."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import orjson

from traincheck.schema.metrics.sums import COLUMNS
from traincheck.store.row_choice import RowChoice

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Columns and their dtypes
METRIC_COLUMNS: dict[str, Any] = {
    "order": "Int64",
    "step": "Int64",
    "rank": "Int64",
    "stream": "string",
    "evaluates": "boolean",
    "name": "string",
    "combine": "string",
    "weight": "Float64",
    "value": "Float64",
    **{column: "Float64" for column in COLUMNS},
    "count": "Int64",
    "zeros": "Int64",
    "nonfinite": "Int64",
}
_NAMES = ("names", "combine", "sums", "values")


def metric_frame(
    batches: Iterable[pa.RecordBatch], choice: RowChoice, patterns: tuple[str, ...]
) -> pd.DataFrame:
    """The table of the rows that are chosen.

    Args:
        batches: all events of kind "metrics": earlier ones name the numbers of later ones.
        choice: of steps and ranks.
        patterns: of names; none for all.
    """
    import pandas

    columns: dict[str, list[Any]] = {name: [] for name in METRIC_COLUMNS}
    for row in _metric_rows(batches, choice, patterns):
        for name, cells in columns.items():
            cells.append(row.get(name))
    made = {n: pandas.array(cells, dtype=METRIC_COLUMNS[n]) for n, cells in columns.items()}
    return pandas.DataFrame(made)


def _metric_rows(
    batches: Iterable[pa.RecordBatch], choice: RowChoice, patterns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The cells of each tensor and each metric of the events that are chosen."""
    known: dict[tuple[int, str], tuple[dict[str, str], dict[str, str]]] = defaultdict(
        lambda: ({}, {})
    )
    for batch in batches:
        for event in batch.to_pylist():
            nested = {key: orjson.loads(event[key]) if event[key] else [] for key in _NAMES}
            names, combine = known[event["rank"], event["stream"].partition("-")[0]]
            names.update(nested["names"] or {})
            combine.update(nested["combine"] or {})
            is_in_steps = choice.steps is None or event["step"] in choice.steps
            if not is_in_steps or (choice.ranks and event["rank"] not in choice.ranks):
                continue
            head = {key: event[key] for key in ("order", "step", "rank", "stream", "evaluates")}
            cells = [(str(number), dict(zip(COLUMNS, sums))) for number, *sums in nested["sums"]]
            cells += [
                (
                    str(number),
                    {"weight": weight, "value": math.nan if value is None else float(value)},
                )
                for number, weight, value in nested["values"]
            ]
            for key, numbers in cells:
                name = names.get(key)  # None: the event that names it is lost
                if name is not None and (
                    not patterns or any(fnmatchcase(name, p) for p in patterns)
                ):
                    yield {**head, "name": name, "combine": combine.get(key, "mean"), **numbers}
