"""Cases and healthy pipelines of the field as they lie in their folders. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEALTHY = FOLDER / "healthy"
# Reports that the product was built with, and reports that nobody had tried it on.
KNOWN, FRESH = "known", "fresh"
POPULATIONS = {KNOWN: FOLDER / "cases", FRESH: FOLDER / "fresh"}
LAUNCHERS = ("python", "torchrun")

Groups = tuple[tuple[str, ...], ...]


class FieldCaseError(Exception):
    """A case.json is not valid, or no case has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCase:
    """A public report, rebuilt as a program with the bug and one without.

    Attributes:
        population: ``known`` or ``fresh``.
        says: a finding names the cause when it contains one word of every group.
        twin: the same for invariants, which name effects; by default ``says``.
        facts: the same for facts, which state what was seen; by default ``says``.
        first_step: the first training step that the bug affects.
    """

    folder: Path
    population: str
    title: str
    source: str
    root_cause: str
    first_step: int
    launcher: str
    says: Groups
    twin: Groups
    facts: Groups

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def buggy(self) -> Path:
        return self.folder / "buggy.py"

    @property
    def clean(self) -> Path:
        return self.folder / "clean.py"


_KINDS = {
    "title": str,
    "source": str,
    "root_cause": str,
    "first_step": int,
    "launcher": str,
    "says": list,
}
_OPTIONAL = {"twin": list, "facts": list}


def load_case(folder: Path, population: str = KNOWN) -> FieldCase:
    """The case in a folder.

    Raises:
        FieldCaseError: case.json is not valid, or a script is missing.
    """
    path = folder / "case.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FieldCaseError(f"{path}: {error}") from error
    wrong = _faults(values)
    wrong += [f"{n} is missing" for n in ("buggy.py", "clean.py") if not (folder / n).is_file()]
    if wrong:
        raise FieldCaseError(f"{path}: {'; '.join(wrong)}")
    says = _groups(values.pop("says"))
    others = {key: _groups(values.pop(key, None)) or says for key in _OPTIONAL}
    return FieldCase(folder=folder, population=population, says=says, **others, **values)


def _groups(value: Sequence[Sequence[str]] | None) -> Groups:
    return tuple(tuple(word.lower() for word in group) for group in value or ())


def _faults(values: dict[str, Any]) -> list[str]:
    kinds = _KINDS | _OPTIONAL
    wrong = [f"unknown key {key}" for key in sorted(values.keys() - kinds.keys())]
    wrong += [f"{key} is missing" for key in _KINDS if key not in values]
    wrong += [
        f"{key} must be of type {kind.__name__}"
        for key, kind in kinds.items()
        if key in values and type(values[key]) is not kind
    ]
    if wrong:
        return wrong
    if values["launcher"] not in LAUNCHERS:
        wrong.append(f"launcher must be one of {', '.join(LAUNCHERS)}")
    if not values["source"].startswith("https://"):
        wrong.append("source must be an address")
    if values["first_step"] < 0:
        wrong.append("first_step must be a step")
    wrong += [f"{key} is empty" for key in ("title", "root_cause") if not values[key].strip()]
    wrong += [
        f"{key} must hold groups of words"
        for key in ("says", *_OPTIONAL)
        if key in values and not _are_groups(values[key])
    ]
    return wrong


def _are_groups(value: Sequence[Any]) -> bool:
    return bool(value) and all(
        isinstance(group, list) and group and all(isinstance(w, str) and w for w in group)
        for group in value
    )


def load_cases(populations: Sequence[str] = (KNOWN, FRESH)) -> list[FieldCase]:
    """All cases of some populations, by name.

    Raises:
        FieldCaseError: one is not valid.
    """
    return [
        load_case(path.parent, population)
        for population in populations
        for path in sorted(POPULATIONS[population].glob("*/case.json"))
    ]


def healthy_pipelines() -> list[Path]:
    """Programs without a fault, by name."""
    return sorted(HEALTHY.glob("*.py"))
