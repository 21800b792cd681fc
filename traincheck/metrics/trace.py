"""Read the metrics of a run: sums of calls, micro-batches and ranks become statistics."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincheck.errors import TraceFormatError, UsageError
from traincheck.schema.events import Event, MetricsEvent
from traincheck.schema.metrics.requests import RATIO, MetricRequest, MonitorView
from traincheck.schema.metrics.sums import (
    COLUMNS,
    REPLICATED,
    STATISTICS,
    Combine,
    Row,
    copies_of,
    divided,
    is_taken,
    merged,
    subject_of,
    with_moments,
)
from traincheck.store.manifest import Manifest, read_manifest
from traincheck.store.reader import TraceReader

from .series import Metrics

_EVALUATION = "eval/"
_NAMED = 4  # modules in a line
_Process = tuple[int, str]
_Found = dict[str, dict[int, dict[_Process, Any]]]


def read_run(run: Path | str | TraceReader) -> Metrics:
    """The metrics of a recorded run.

    Raises:
        TraceFormatError: it is not a run, or cannot be read.
        UsageError: it has no metrics.
    """
    reader = run if isinstance(run, TraceReader) else TraceReader(run)
    view = view_of(reader.manifest, reader.path)
    metrics = combine(reader.events(), view)
    if not metrics:
        raise UsageError(
            f"{reader.path} has no metrics",
            fix="record a run with traincheck monitor train.py",
        )
    return metrics


def overview(run: Path | str, metrics: Metrics) -> str:
    """How much was measured, in one line."""
    settings = read_manifest(Path(run))[0]
    every = settings.settings.get("every", 1) if settings is not None else 1
    names = {(subject_of(key), key.rpartition("/")[0]) for key in metrics}
    modules = sum(subject in ("activation", "input") for subject, _ in names)
    variables = len({name.partition("/")[2] for subject, name in names if subject in REPLICATED})
    steps = len(metrics.steps)
    return (
        f"{steps:,} steps measured, one in {every} after the first ones; "
        f"{modules:,} modules, {variables:,} variables, {len(metrics):,} metrics"
    )


def view_of(manifest: Manifest | None, run: Path) -> MonitorView | None:
    """The requests of a run; None if its manifest does not tell it.

    Raises:
        TraceFormatError: they are not known to this version.
    """
    settings = manifest.settings if manifest is not None else None
    record = (settings or {}).get("monitor")
    try:
        return None if record is None else MonitorView.from_json(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TraceFormatError(
            f"the manifest of {run} names metrics that are not known: {error!r}",
            fix="read it with the traincheck that recorded it",
        ) from error


def combine(events: Iterable[Event], view: MonitorView | None = None) -> Metrics:
    """The metrics in events of a run.

    Args:
        events: in the order of the run.
        view: which statistics were requested; None for all that the sums allow.
    """
    gathered = Gathered()
    for event in events:
        if isinstance(event, MetricsEvent):
            gathered.add(event)
    found = gathered.metrics(view)
    wants_attention = view is not None and any(one.on == "attention" for one in view.requests)
    if wants_attention and not found.notes and not any("attention_" in key for key in found):
        found.notes.append("no attention was measured: no call of a known function was seen")
    return found


class Gathered:
    """The numbers of all processes, by name and step."""

    def __init__(self) -> None:
        self._names: dict[_Process, dict[int, str]] = defaultdict(dict)
        self._combine: dict[str, str] = {}
        self._sums: _Found = defaultdict(lambda: defaultdict(dict))
        self._values: _Found = defaultdict(lambda: defaultdict(dict))
        self._failed: dict[tuple[str, str], dict[str, Any]] = {}
        self._unseen: dict[str, set[str]] = {"": set(), _EVALUATION: set()}
        self._unnamed = 0

    def add(self, event: MetricsEvent) -> None:
        """Add the numbers of one step of one process."""
        process = (event.rank, event.stream.partition("-")[0])
        names = self._names[process]
        names.update({int(n): name for n, name in event.names.items() if n.isdecimal()})
        for number, how in event.combine.items():
            self._combine[names.get(int(number), "")] = how
        step, before = event.step or 0, _EVALUATION if event.evaluates else ""
        for index, *row in event.sums:
            if (name := self._name(names, index)) is not None:
                known = self._sums[before + name][step]
                padded: Row = [*row, *[None] * (len(COLUMNS) - len(row))]
                known[process] = merged([known[process], padded]) if process in known else padded
        for one_of, weight, value in event.values:
            if (name := self._name(names, one_of)) is not None:
                known_value = math.nan if value is None else float(value)
                self._values[before + name][step][process] = (weight, known_value)
        for number in event.skipped:
            name = names.get(int(number), "") if number.isdecimal() else ""
            kind, _, module = name.partition("/")
            if kind == "attention":
                self._unseen[before].add(module)
        for one in event.failed:
            key = (str(one.get("metric")), str(one.get("on")))
            self._failed.setdefault(key, {**one, "step": step})

    def _name(self, names: Mapping[int, str], number: Any) -> str | None:
        """The name of a number; None if the event that tells it is lost."""
        found = names.get(number)
        self._unnamed += found is None
        return found

    def metrics(self, view: MonitorView | None) -> Metrics:
        """The statistics of all names."""
        series: dict[str, dict[int, float]] = {}
        asked = _Asked(view)
        rows = {
            name: {step: self._whole(name, parts) for step, parts in by_step.items()}
            for name, by_step in self._sums.items()
        }
        for name, by_step in rows.items():
            for key, values in asked.statistics(name, by_step, rows):
                series[key] = values
        for name, values_by_step in self._values.items():
            how = self._combine.get(name.removeprefix(_EVALUATION), Combine.MEAN)
            series[name] = {s: _value(how, list(p.values())) for s, p in values_by_step.items()}
        found = Metrics(series)
        found.failed = list(self._failed.values())
        if self._unnamed:
            found.notes.append(
                f"{self._unnamed:,} numbers are left out: the events that name them are lost"
            )
        found.notes += self._unmeasured()
        return found

    def _unmeasured(self) -> Iterator[str]:
        """A line about modules for attention that were not measured, nor any around them."""
        for before, modules in self._unseen.items():
            start = f"{before}attention_"
            keys = (key.removeprefix(start) for key in self._values if key.startswith(start))
            known = {key.partition("/")[2].rpartition(".head_")[0] for key in keys}
            names = sorted(m for m in modules if known.isdisjoint(_around(m)))
            if names:
                when = " in forwards without gradients" if before else ""
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                yield (
                    f"attention was not measured{when}: no known function of attention is called "
                    f"in {', '.join(names[:_NAMED])}{more}"
                )

    def take(self, view: MonitorView | None) -> Metrics:
        """The statistics of the steps since the last call, which are then forgotten."""
        found = self.metrics(view)
        self._sums.clear()
        self._values.clear()
        return found

    def _whole(self, name: str, parts: Mapping[_Process, Row]) -> Row:
        total = with_moments(merged(parts.values()))
        plain = name.removeprefix(_EVALUATION)
        copies = copies_of(plain, self._combine.get(plain, ""), len(parts))
        return divided(total, copies) if copies > 1 else total


def _around(module: str) -> Iterator[str]:
    """The path of a module, and those of the modules around it."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def requested_statistics(
    sums: Mapping[str, Row], requests: Sequence[MetricRequest]
) -> dict[str, float]:
    """The requested statistics of the tensors of one step, by key."""
    asked = _Asked(MonitorView(requests=tuple(requests)))
    rows = {name: {0: row} for name, row in sums.items()}
    return {
        key: values[0]
        for name, by_step in rows.items()
        for key, values in asked.statistics(name, by_step, rows)
    }


class _Asked:
    """Which statistics of a tensor are shown."""

    def __init__(self, view: MonitorView | None) -> None:
        self._requests: dict[str, list[MetricRequest]] = {}
        for request in view.requests if view is not None else ():
            self._requests.setdefault(request.on, []).append(request)
        self._is_given = view is not None

    def statistics(
        self, name: str, by_step: Mapping[int, Row], rows: Mapping[str, Mapping[int, Row]]
    ) -> Iterable[tuple[str, dict[int, float]]]:
        """Key and numbers of each statistic."""
        for statistic in self._names(name):
            if statistic == RATIO:
                values = _ratios(by_step, rows.get(f"parameter/{name.partition('/')[2]}", {}))
            else:
                values = _values(statistic, by_step)
            if values:
                yield f"{name}/{statistic}", values

    def _names(self, name: str) -> list[str]:
        subject = subject_of(name.removeprefix(_EVALUATION))
        if not self._is_given:
            return [*STATISTICS, *([RATIO] if subject == "update" else [])]
        asked = self._requests.get(subject, ())
        return list(dict.fromkeys(s for request in asked for s in request.statistics))


def _values(statistic: str, by_step: Mapping[int, Row]) -> dict[int, float]:
    of = STATISTICS[statistic].of
    found = {step: of(row) for step, row in by_step.items() if is_taken(statistic, row)}
    return {step: value for step, value in found.items() if value is not None}


def _ratios(updates: Mapping[int, Row], parameters: Mapping[int, Row]) -> dict[int, float]:
    """The norm of each update in units of that of the parameter before it, where that is not 0."""
    norm = STATISTICS["norm"].of
    out = {}
    for step, row in updates.items():
        moved, size = norm(row), norm(parameters[step]) if step in parameters else None
        if moved is not None and size:
            out[step] = moved / size
    return out


def _value(how: str, parts: Sequence[tuple[float, float]]) -> float:
    total = parts[0][1]
    for _, more in parts[1:]:
        total = Combine.add(how, total, more)
    if how != Combine.MEAN:
        return total
    weight = sum(weight for weight, _ in parts)
    return total / weight if weight else math.nan
