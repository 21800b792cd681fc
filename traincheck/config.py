"""Options from a TOML file, checked against the names and types of one dataclass a table.

Defaults are not here: an option that is not given is None or empty.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from traincheck.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """What ``[collect]`` may hold: the options of traincheck-collect by their long names.

    output: run directory. invariants: invariant files whose needs are recorded.
    rules: record what the built-in rules need. every, warmup: see Settings.
    level: default or deep. instrument: packages of the user.
    """

    output: str | None = None
    invariants: tuple[str, ...] = ()
    rules: bool = False
    every: int | None = None
    warmup: int | None = None
    level: str | None = None
    instrument: tuple[str, ...] = ()


_TABLES = {"collect": CollectConfig}

# Annotations are strings (from __future__): this says how each is written in TOML.
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str | None": ("a string", lambda value: isinstance(value, str)),
    "int | None": ("a whole number", lambda value: type(value) is int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    ),
}


def read_collect(path: Path) -> CollectConfig:
    """The ``[collect]`` table of a TOML file.

    Raises:
        UsageError: the file cannot be read, is not TOML, or holds an unknown table, key or type.
    """
    document = _read_toml(path)
    for name in document:
        if name not in _TABLES:
            raise _unknown(path, f"table [{name}]", name, _TABLES)
    table = document.get("collect", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: collect is not a table", fix="write [collect] on its own line")
    known = {field.name: str(field.type) for field in fields(CollectConfig)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise _unknown(path, f"key {key!r} in [collect]", key, known)
        form, fits = _FORMS[known[key]]
        if not fits(value):
            raise UsageError(f"{path}: {key} in [collect] is {value!r}", fix=f"make it {form}")
        values[key] = tuple(value) if isinstance(value, list) else value
    return CollectConfig(**values)


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"configuration {str(path)!r} cannot be read: {error.strerror}", fix="check the path"
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(
            f"configuration {str(path)!r} is not TOML: {error}", fix="correct the file"
        ) from error


def _unknown(path: Path, what: str, name: str, known: Iterable[str]) -> UsageError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    fix = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
    return UsageError(f"{path}: unknown {what}", fix=fix)
