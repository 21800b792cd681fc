"""Differences of two runs beside their steps: machine, versions, settings, command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from traincheck.diff.difference import EnvironmentEntry
from traincheck.diff.run_facts import RankFacts, Run

# Facts that differ between any two runs, or between views of one.
_UNTOLD = frozenset(
    {
        "pid", "parent_pid", "rank", "instruments", "recorded", "some", "stats", "argv0", "level",
        "thread", "worker", "collected", "settings", "sums", "view", "source",
    }
)  # fmt: skip
# Facts that change the last bits of a result.
ARITHMETIC = (
    "thread", "deterministic", "determinism", "tf32", "cudnn", "capability", "precision", "torch",
    "OMP_", "MKL", "CUBLAS", "device", "benchmark", "cuda", "mkldnn", "platform", "hostname",
)  # fmt: skip


def environment_of(a: Run, b: Run, ranks: tuple[int, int]) -> tuple[EnvironmentEntry, ...]:
    """The facts of two processes that differ; equal ones are left out."""
    mine, yours = _facts(a, ranks[0]), _facts(b, ranks[1])
    return differing(mine, yours)


def with_marks(
    entries: tuple[EnvironmentEntry, ...], a: RankFacts, b: RankFacts
) -> tuple[EnvironmentEntry, ...]:
    """The same with the facts that processes recorded about themselves."""
    more = differing(_marked(a), _marked(b))
    known = {entry.name for entry in entries}
    return (*entries, *(entry for entry in more if entry.name not in known))


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[EnvironmentEntry, ...]:
    """The names whose values differ, in the order of A."""
    return tuple(
        EnvironmentEntry(name, _text(a.get(name)), _text(b.get(name)))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def arithmetic(entries: tuple[EnvironmentEntry, ...]) -> list[EnvironmentEntry]:
    """The entries that may change the last bits of a computation."""
    return [
        entry for entry in entries if any(word.lower() in entry.name.lower() for word in ARITHMETIC)
    ]


def _facts(run: Run, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    manifest = run.reader.manifest
    if manifest is not None:
        found.update({k: v for k, v in manifest.created_with.items() if isinstance(v, str)})
        found.update(manifest.environment)
        if manifest.command:
            words = _without_interpreter(manifest.command)
            found["command"] = shlex.join(_relative(word, manifest.cwd) for word in words)
    for name, value in run.process(rank).items():
        if name not in _UNTOLD and isinstance(value, (str, int, float, bool)):
            found[name] = value
    found["ranks"] = len(run.ranks)
    return found


def _without_interpreter(command: tuple[str, ...]) -> tuple[str, ...]:
    return (
        ("python", *command[1:]) if command[0].rpartition("/")[2].startswith("python") else command
    )


def _relative(word: str, cwd: str) -> str:
    """A path below the working directory, from there."""
    return "." if cwd and word == cwd else word.removeprefix(f"{cwd}/") if cwd else word


def _marked(facts: RankFacts) -> dict[str, Any]:
    """The facts of the mark in which a process describes itself."""
    found: dict[str, Any] = {}
    for mark in facts.marks:
        if mark.text == "process facts":
            _flatten("", mark.data, found)
            return found
    return found


def _flatten(prefix: str, data: Mapping[str, Any], found: dict[str, Any]) -> None:
    for name, value in data.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}{name}.", value.get("dict", value), found)
        else:
            found[f"{prefix}{name}"] = value


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)
