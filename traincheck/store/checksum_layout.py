"""Checksums of a run as reports, one for each step and rank, in the layout of fkat; as YAML.

Keys and symbols are those of fkat 0.1.2, so that its users can compare reports as before. Contents
differ where that layout is ambiguous; see docs/checksums.md and ADR 0029.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import xxhash
import yaml

from traincheck.errors import OutputError, UsageError, suggested
from traincheck.schema.checksums import (
    BATCH,
    BUFFER,
    GENERATOR,
    GRADIENT,
    LOCAL_GRADIENT,
    PARAMETER,
    SETTINGS,
    STATE,
)
from traincheck.schema.events import ChecksumEvent, StepEvent
from traincheck.schema.files import dump_json
from traincheck.schema.values import TensorSummary
from traincheck.store.reader import TraceReader
from traincheck.version import VERSION

# Names of statistics -> numbers and their symbols; in the order of a report
_SYMBOLS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "shape": (),
    "dtype": (),
    "infs": (("posinf", "∞̟"), ("neginf", "∞̠")),
    "nans": (("nans", "⚠"),),
    "zeros": (("zeros", "⌀"),),
    "med": (("med", "m̃"),),
    "mean": (("mean", "μ"),),
    "amean": (("amean", "μ⁺"),),
    "std": (("std", "\N{GREEK SMALL LETTER SIGMA}"),),
    "var": (("var", "σ²"),),
    "uvar": (("uvar", "s²"),),
    "skew": (("skew", "γ₁"),),
    "kurt": (("kurt", "γ₂"),),
    "mode": (("mode", "Mo"),),
    "min": (("min", "↤"),),
    "max": (("max", "↦"),),
    "hash": (),
}
STATISTICS = tuple(_SYMBOLS)
CHECKSUMS = ("params", "grads", "buffers", "rngs", "optimizers", "batch")
ABOUT = "__about__"
_UNKNOWN = "?"
_PREFIX = "xxh3-128:"
_HASH = (
    "XXH3, 128 bits, over content, shape and dtype; of several, over their names and hashes. "
    "Another algorithm is named before its hash, such as mix-128 for tensors on a device."
)
_DTYPE = re.compile(r"(float|bfloat|uint|int|complex|bool)(8_)?(.*)")
_SHORT = {"float": "fp", "bfloat": "bf", "uint": "u", "int": "i", "complex": "c", "bool": "b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumReport:
    """The checksums of one step of one rank.

    Attributes:
        step: number of the step, from 0; the state is that before its update.
        rank: global index.
        events: in the order of recording.
        notes: what is missing, for people.
    """

    step: int
    rank: int
    events: tuple[ChecksumEvent, ...]
    notes: tuple[str, ...] = field(default=())


def to_layout(
    report: ChecksumReport,
    *,
    statistics: Collection[str] = STATISTICS,
    checksums: Collection[str] = CHECKSUMS,
) -> dict[str, Any]:
    """The report as nested values: text, numbers, lists and mappings.

    Args:
        report: of one step and rank.
        statistics: the names of those that describe each tensor; see `STATISTICS`.
        checksums: the groups to include; see `CHECKSUMS`.

    Raises:
        UsageError: a name is unknown.
    """
    check_names(statistics, STATISTICS, "statistic")
    check_names(checksums, CHECKSUMS, "group of checksums")
    layout = _Layout(report, frozenset(statistics))
    parts: dict[str, Any] = {ABOUT: layout.about()}
    if not {"params", "grads"}.isdisjoint(checksums):
        parts["parameters"] = layout.parameters(
            has_data="params" in checksums, has_gradients="grads" in checksums
        )
    if "buffers" in checksums:
        parts["buffers"] = layout.buffers()
    if "optimizers" in checksums:
        parts["optimizers"] = layout.optimizers()
    if "rngs" in checksums:
        parts["rngs"] = layout.generators()
    if "batch" in checksums:
        parts["batch"] = layout.batch()
    return parts


def to_yaml(layout: Mapping[str, Any]) -> str:
    """The layout as YAML, keys in their order."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        dict(layout), Dumper=dumper, sort_keys=False, indent=2, allow_unicode=True, width=10**6
    )
    return text


def to_json(layout: Mapping[str, Any]) -> str:
    """The layout as JSON, keys in their order."""
    return dump_json(layout, option=orjson.OPT_INDENT_2).decode() + "\n"


def check_names(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse names that are not known.

    Raises:
        UsageError: one is not.
    """
    for name in given:
        if name not in known:
            raise UsageError(
                f"no {what} is called {name!r}",
                fix=f"{suggested(name, known)}There are {', '.join(known)}",
            )


class _Layout:
    """The parts of one report."""

    def __init__(self, report: ChecksumReport, statistics: frozenset[str]) -> None:
        self._report = report
        self._statistics = statistics
        self._events: dict[str, list[ChecksumEvent]] = {}
        for event in report.events:
            self._events.setdefault(event.group, []).append(event)
        names = [event.name for event in self._of(PARAMETER)] + [e.name for e in self._of(BUFFER)]
        roots = {name.partition(".")[0] for name in names}
        self._root = f"{roots.pop()}." if len(roots) == 1 else ""

    def _of(self, group: str) -> list[ChecksumEvent]:
        return self._events.get(group, [])

    def _short(self, name: str) -> str:
        """A name as ``named_parameters()`` gives it, where there is one model."""
        return name.removeprefix(self._root)

    def about(self) -> dict[str, Any]:
        """How to read the report."""
        about: dict[str, Any] = {
            "traincheck": VERSION,
            "step": self._report.step,
            "rank": self._report.rank,
            "moment": "before the optimizer's step; the batch as its loader returned it",
            "hash": _HASH,
        }
        if self._report.notes:
            about["notes"] = list(self._report.notes)
        return about

    def parameters(self, *, has_data: bool, has_gradients: bool) -> dict[str, Any]:
        """Each parameter with its data and gradients; null where there is no gradient."""
        gradients = {event.name: event for event in self._of(GRADIENT)}
        local = {event.name: event for event in self._of(LOCAL_GRADIENT)}
        found: dict[str, Any] = {}
        for event in self._of(PARAMETER):
            entry = found[self._short(event.name)] = {}
            if has_data:
                entry["data"] = self._text(event)
            if has_gradients:
                gradient = gradients.get(event.name)
                entry["grad"] = self._text(gradient) if gradient else None
                if event.name in local:
                    entry["local_grad"] = self._text(local[event.name])
        if has_data:
            found["__all_data__"] = _digest(self._of(PARAMETER))
        if has_gradients:
            found["__all_grads__"] = _digest(gradients.values())
            if local:
                found["__all_local_grads__"] = _digest(local.values())
        return found

    def buffers(self) -> dict[str, Any]:
        """Each buffer."""
        events = self._of(BUFFER)
        found: dict[str, Any] = {self._short(event.name): self._text(event) for event in events}
        found["__all_buffers__"] = _digest(events)
        return found

    def optimizers(self) -> list[dict[str, Any]]:
        """Each optimizer: class, defaults, groups, and state by the names of parameters."""
        found = []
        for event in self._of(SETTINGS):
            states = [one for one in self._of(STATE) if one.owner == event.owner]
            groups = [
                {**group, "params": [self._short(name) for name in group.get("params", ())]}
                for group in event.data.get("param_groups", ())
            ]
            state: dict[str, Any] = {}
            for one in states:
                name, *keys = one.name.split("/")
                into = state.setdefault(self._short(name), {})
                for key in keys[:-1]:
                    into = into.setdefault(key, {})
                value = one.data.get("value") if one.summary is None else self._text(one)
                into[keys[-1] if keys else ""] = value
            found.append(
                {
                    "__type__": str(event.data.get("type", "")).rpartition(".")[2],
                    "defaults": event.data.get("defaults"),
                    "__all_defaults__": _digest_of(event.data.get("defaults")),
                    "param_groups": groups,
                    "__all_param_groups__": _digest_of(event.data.get("param_groups")),
                    "state": state,
                    "__all_state__": _digest(states),
                }
            )
        return found

    def generators(self) -> dict[str, Any]:
        """The state of each random generator."""
        found: dict[str, Any] = {}
        for event in self._of(GENERATOR):
            if event.summary is not None:
                found[event.name] = _hash(event.summary)
            else:
                state = str(event.data.get("state")).removeprefix(_PREFIX)
                found[event.name] = {**event.data, "state": state}
        return found

    def batch(self) -> dict[str, Any] | None:
        """The last batch of the step, with earlier micro-batches under ``earlier``; else null."""
        batches: dict[tuple[str | None, int], list[ChecksumEvent]] = {}
        for event in self._of(BATCH):
            index = event.data.get("index")
            place = event.owner, index if isinstance(index, int) else -1
            batches.setdefault(place, []).append(event)
        parts = [
            {
                "__batch_idx__": index,
                "__batch__": _nested({event.name: self._text(event) for event in events}),
                "__all_batch__": _digest(events),
            }
            for (_, index), events in batches.items()
        ]
        if not parts:
            return None
        return {**parts[-1], "earlier": parts[:-1]} if len(parts) > 1 else parts[-1]

    def _text(self, event: ChecksumEvent) -> str | None:
        """A tensor in one line: its statistics, in the order of `STATISTICS`."""
        summary = event.summary
        if summary is None:
            return None
        parts = []
        for name, numbers in _SYMBOLS.items():
            if name not in self._statistics:
                continue
            if name in _OF_SUMMARY:
                parts.append(_OF_SUMMARY[name](summary))
            for key, symbol in numbers:
                # ``?`` if there is no number, as of the skewness of equal elements
                is_nan = key in ("skew", "kurt") and event.numbers.get("std")
                parts.append(f"{event.numbers.get(key, 'nan' if is_nan else _UNKNOWN)}{symbol}")
        return "|".join(parts)


def _dtype(summary: TensorSummary) -> str:
    found = _DTYPE.fullmatch(summary.dtype)
    if found is None:
        return summary.dtype
    kind, narrow, rest = found.groups()
    return _SHORT[kind] + (narrow or "") + rest


def _hash(summary: TensorSummary) -> str:
    return (summary.fingerprint or _UNKNOWN).removeprefix(_PREFIX)


_OF_SUMMARY: Mapping[str, Callable[[TensorSummary], str]] = {
    "shape": lambda summary: "\N{MULTIPLICATION SIGN}".join(map(str, summary.shape)) or "()",
    "dtype": _dtype,
    "hash": _hash,
}


def _digest(events: Iterable[ChecksumEvent]) -> str:
    """One hash over names and contents, in the order of names."""
    parts = [
        (event.name, event.summary.fingerprint if event.summary else event.data.get("value"))
        for event in events
    ]
    return _digest_of(sorted(parts, key=lambda part: part[0]))


def _digest_of(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(dump_json(value))


_KEY = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def _nested(leaves: Mapping[str, Any]) -> Any:
    """The structure of a batch: ``batch.x[0]`` is the first item of the list at key x."""
    found: Any = None
    for path, leaf in leaves.items():
        keys = [key or int(place) for key, place in _KEY.findall(path)]
        if not keys:
            return leaf
        found = _put(found, keys, leaf)
    return _lists(found)


def _put(into: Any, keys: list[str | int], leaf: Any) -> Any:
    if not keys:
        return leaf
    into = into if isinstance(into, dict) else {}
    into[keys[0]] = _put(into.get(keys[0]), keys[1:], leaf)
    return into


def _lists(value: Any) -> Any:
    """Mappings with positions as keys, as lists; null where an item is no tensor."""
    if not isinstance(value, dict):
        return value
    made = {key: _lists(item) for key, item in value.items()}
    if all(isinstance(key, int) for key in made):
        return [made.get(place) for place in range(max(made) + 1)]
    return made


def save_text(path: Path, text: str) -> None:
    """Write a file, so that a reader never finds a part of it. Makes its folder.

    Raises:
        OutputError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror}",
            fix="name a writable folder, on a disk with free space",
        ) from error


def read_reports(
    reader: TraceReader, steps: range | None = None, rank: int | None = None
) -> Iterator[ChecksumReport]:
    """The reports of a run, by step and then by rank.

    Args:
        reader: of the run.
        steps: only those of these steps; None for all.
        rank: only those of this rank; None for all.

    Raises:
        TraceFormatError: the run cannot be read.
    """
    open_ones: dict[tuple[int, str], list[ChecksumEvent]] = {}
    for event in reader.events():
        if rank is not None and event.rank != rank:
            continue
        process = event.rank, event.stream.partition("-")[0]
        if isinstance(event, ChecksumEvent):
            open_ones.setdefault(process, []).append(event)
        elif isinstance(event, StepEvent) and process in open_ones:
            found = open_ones.pop(process)
            yield from _report(found, steps, is_torn=not event.recorded)
    for found in open_ones.values():  # the run was killed, or is going on
        yield from _report(found, steps, is_torn=True)


def _report(
    events: list[ChecksumEvent], steps: range | None, *, is_torn: bool
) -> Iterator[ChecksumReport]:
    step, rank = events[-1].step, events[-1].rank
    if step is None or (steps is not None and step not in steps):
        return
    notes = ("the record of this step is not complete",) if is_torn else ()
    yield ChecksumReport(step=step, rank=rank, events=tuple(events), notes=notes)
