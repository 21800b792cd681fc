"""Two profiles, layer by layer. They are read from the JSON that `traincheck profile` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincheck.errors import UsageError
from traincheck.profile.numbers import percent, short, size
from traincheck.profile.tree import VERSION
from traincheck.schema.files import parse_json, read_regular

FIELDS = {
    "total_forward_ms": "fwd ms",
    "total_backward_ms": "bwd ms",
    "flops": "FLOPs",
    "retained": "retained",
    "num_parameters": "params",
    "calls": "calls",
    "recomputed_calls": "computed again",
}
_TIMES = ("total_forward_ms", "total_backward_ms")
_NOISE = 0.05  # times of two runs that differ by less are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A layer that differs. before, after: its fields; None if only one profile has it."""

    path: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    def fields(self) -> Iterator[tuple[str, float, float]]:
        """Names and values of the fields that differ."""
        for name in FIELDS:
            old = (self.before or {}).get(name, 0)
            new = (self.after or {}).get(name, 0)
            if name in _TIMES and abs(new - old) <= _NOISE * max(abs(old), abs(new)):
                continue
            if old != new:
                yield name, old, new


def read_document(path: Path | str) -> dict[str, Any]:
    """A profile that `traincheck profile --format json` wrote.

    Raises:
        UsageError: it is not one.
        OSError: it cannot be read.
    """
    try:
        found: dict[str, Any] = {**parse_json(read_regular(path))}
        found["tree"] = {**found["tree"]}
        version = int(found["schema_version"])
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} is not a profile: {error}",
            fix="write one: traincheck profile --format json -o A.json train.py",
        ) from error
    if version > VERSION:
        raise UsageError(
            f"{path} has schema version {version}, newer than {VERSION}",
            fix="update traincheck, or write the profile again",
        )
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The layers that differ, in the order of the first profile, then those that are new."""
    old, new = dict(_flat(before["tree"])), dict(_flat(after["tree"]))
    found = [
        Change(path=path, before=old.get(path), after=new.get(path))
        for path in dict.fromkeys([*old, *new])
    ]
    return [one for one in found if any(one.fields())]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, node in tree.items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, node["info"]
        yield from _flat(node["children"], path)


def difference_text(before: Mapping[str, Any], after: Mapping[str, Any], names: list[str]) -> str:
    """The totals, and one line for each layer and field that differs."""
    lines = [f"{names[0]} -> {names[1]}", ""]
    lines += _totals(before, after)
    found = changes(before, after)
    lines.append("")
    for change in found:
        lines.append(f"{change.path}{_presence(change)}")
        lines += [
            f"  {FIELDS[name]:<15} {_value(name, old)} -> {_value(name, new)}{_ratio(old, new)}"
            for name, old, new in change.fields()
        ]
    if not found:
        lines.append(f"no layer differs; times within {percent(_NOISE)} count as equal")
    return "\n".join(lines) + "\n"


def _totals(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = before["step_ms"], after["step_ms"]
    yield f"step            {old:.1f} ms -> {new:.1f} ms{_ratio(old, new)}"
    for phase in dict.fromkeys([*before["phases_ms"], *after["phases_ms"]]):
        old, new = before["phases_ms"].get(phase, 0), after["phases_ms"].get(phase, 0)
        if phase != "overhead" and abs(new - old) > _NOISE * max(old, new):
            yield f"  {phase:<13} {old:.1f} ms -> {new:.1f} ms{_ratio(old, new)}"
    old, new = before["memory"]["peak"], after["memory"]["peak"]
    yield f"peak memory     {size(old)} -> {size(new)}{_ratio(old, new)}"


def _presence(change: Change) -> str:
    if change.before is None:
        return "  (only in the second)"
    return "  (only in the first)" if change.after is None else ""


def _value(name: str, value: float) -> str:
    if name == "retained":
        return size(int(value))
    return f"{value:.3g}" if name in _TIMES else short(value)


def _ratio(old: float, new: float) -> str:
    if not old:
        return ""
    return f"  ({100 * (new - old) / old:+.0f} %)"
