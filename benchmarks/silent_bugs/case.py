"""Cases and clean pipelines as they lie in their folders. Reads and validates; runs nothing."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
CASES = FOLDER / "cases"
CLEAN = FOLDER / "clean"

RULE, RULE_MAYBE, REF, DIFF = "RULE", "RULE~", "REF", "DIFF"
MARKS = (RULE, RULE_MAYBE, REF, DIFF)
CLASSES = ("ARG", "CHG", "CKPT", "DTY", "NUM", "ORD", "RNGD", "XRANK", "XVAR")
LAUNCHERS = ("python", "torchrun")
# Clean pipelines that run under torchrun begin with this word.
TWO_RANKS = "two_ranks_"


class CaseError(Exception):
    """A case.toml does not say what it must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A bug and its healthy twin.

    codes: rules that may name it. names: words of which a finding must hold one. first_step: the
    first step that is affected; last_step: the latest that a finding may name. aborts: buggy.py
    ends with an error; it is judged by what was recorded until then.
    """

    folder: Path
    id: str
    title: str
    source: str
    class_: str
    mark: str
    launcher: str
    codes: tuple[str, ...]
    names: tuple[str, ...]
    first_step: int
    last_step: int
    fault: str
    aborts: bool = False

    @property
    def buggy(self) -> Path:
        return self.folder / "buggy.py"

    @property
    def healthy(self) -> Path:
        return self.folder / "healthy.py"


_KINDS: dict[str, type] = {
    "id": str,
    "title": str,
    "source": str,
    "class": str,
    "mark": str,
    "launcher": str,
    "codes": list,
    "names": list,
    "first_step": int,
    "last_step": int,
    "fault": str,
}
_OPTIONAL: dict[str, type] = {"aborts": bool}


def load_case(folder: Path) -> Case:
    """The case in a folder.

    Raises:
        CaseError: case.toml is not valid, or a script is not there.
    """
    path = folder / "case.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CaseError(f"{path}: {error}") from error
    wrong = _faults(values)
    wrong += [f"{n} is not there" for n in ("buggy.py", "healthy.py") if not (folder / n).is_file()]
    if wrong:
        raise CaseError(f"{path}: {'; '.join(wrong)}")
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Case(folder=folder, class_=fields.pop("class"), **fields)


def _faults(values: dict[str, Any]) -> list[str]:
    wrong = [
        f"unknown key {key}" for key in sorted(values.keys() - _KINDS.keys() - _OPTIONAL.keys())
    ]
    wrong += [f"{key} is missing" for key in _KINDS if key not in values]
    wrong += [
        f"{key} must be of type {kind.__name__}"
        for key, kind in (_KINDS | _OPTIONAL).items()
        if key in values and type(values[key]) is not kind
    ]
    if wrong:
        return wrong
    for key, allowed in (("class", CLASSES), ("mark", MARKS), ("launcher", LAUNCHERS)):
        if values[key] not in allowed:
            wrong.append(f"{key} must be one of {', '.join(allowed)}")
    if not re.fullmatch(r"[A-Z]\d{2,3}", values["id"]):
        wrong.append("id must be a letter and two or three digits")
    if not 0 <= values["first_step"] <= values["last_step"]:
        wrong.append("first_step and last_step must be steps, in this order")
    if not values["names"] or not all(isinstance(n, str) and n for n in values["names"]):
        wrong.append("names must hold words")
    if not all(re.fullmatch(r"TC\d{3}", str(code)) for code in values["codes"]):
        wrong.append("codes must be codes of rules")
    if values["mark"] == RULE and not values["codes"]:
        wrong.append("a case marked RULE must name a rule")
    wrong += [f"{key} is empty" for key in ("title", "fault") if not values[key].strip()]
    if not values["source"].startswith("https://"):
        wrong.append("source must be an address")
    return wrong


def load_cases(folder: Path = CASES) -> list[Case]:
    """All cases, by id.

    Raises:
        CaseError: one is not valid, or two have one id.
    """
    found = sorted((load_case(path.parent) for path in folder.glob("*/case.toml")), key=_order)
    ids = [case.id for case in found]
    twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    if twice:
        raise CaseError(f"several cases have the id {', '.join(twice)}")
    return found


def _order(case: Case) -> tuple[str, str]:
    return case.id, case.folder.name


def clean_pipelines(folder: Path = CLEAN) -> list[Path]:
    """Scripts without a fault, by name."""
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("_"))


def launcher_of(script: Path) -> str:
    """How a clean pipeline is started."""
    return "torchrun" if script.stem.startswith(TWO_RANKS) else "python"
