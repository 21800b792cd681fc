"""What a project has settled: ``traincheck.toml``, or ``[tool.traincheck]`` of pyproject.toml.

Names and types are checked against one dataclass a table; defaults are in these and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from traincheck.check.suppression.policy import Suppression
from traincheck.errors import UsageError, nearest
from traincheck.schema.findings import SEVERITIES
from traincheck.schema.reading import read_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "traincheck.toml"
_PYPROJECT = "pyproject.toml"
_MOST_BYTES = 1 << 20  # the parser is slow, and no configuration is this long
_MIN_LIKENESS = 2  # letters a name must share with another's beginning to be taken for it


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a project has settled about its checks.

    Attributes:
        select: codes of rules, beginnings of codes, names of relations; none for all.
        ignore: the same, to be left out.
        fail_on: lowest severity that makes the exit status 1.
        suppress: violations that are accepted, with their reasons.
        rules: options of rules, by code.
        collect: options of traincheck-collect.
        path: the file that said so; None for the defaults.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "warning"
    suppress: tuple[Suppression, ...] = ()
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collect: CollectConfig = field(default_factory=CollectConfig)
    path: Path | None = None

    def narrowed(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Config:
        """With codes that were given for one check, and so come before what the file says.

        Who selects a code wants it even where the file ignores it.
        """
        kept = () if select else self.ignore
        return replace(self, select=tuple(select) or self.select, ignore=tuple(ignore) or kept)


_Table = TypeVar("_Table", CollectConfig, Suppression)

# Annotations are strings (from __future__): this says how each is written in TOML.
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a string", lambda value: isinstance(value, str)),
    "str | None": ("a string", lambda value: isinstance(value, str)),
    "int | None": ("a whole number", lambda value: type(value) is int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": (
        "a list of strings",
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    ),
}


def find_config(start: Path) -> Path | None:
    """The nearest configuration from ``start`` upward.

    In one directory traincheck.toml comes before pyproject.toml, which counts only when it has a
    table ``[tool.traincheck]``.
    """
    for directory in [start, *start.parents]:
        if (directory / FILE).is_file():
            return directory / FILE
        if _has_table(directory / _PYPROJECT):
            return directory / _PYPROJECT
    return None


def load_config(path: Path | None = None, start: Path | None = None) -> Config:
    """The configuration in ``path``, else the nearest from ``start`` upward, else the defaults.

    Codes and options of rules are not looked up here; who makes the engine does that.

    Raises:
        UsageError: the file cannot be read, is not TOML, or holds an unknown table, key or type.
    """
    path = path or find_config(start or Path.cwd())
    if path is None:
        return Config()
    document = _read_toml(path)
    if path.name == _PYPROJECT:
        for name in ("tool", "traincheck"):
            document = document.get(name, {})
            if not isinstance(document, dict):
                raise UsageError(
                    f"{path}: {name} is {document!r}, no table", fix="write [tool.traincheck]"
                )
    known = [one.name for one in fields(Config) if one.name != "path"]
    for name in document:
        if name not in known:
            what = f"table [{name}]" if isinstance(document[name], dict) else f"key {name!r}"
            raise _unknown(path, what, name, known)
    values = _values(path, "", document, {"select", "ignore", "fail_on"}, Config)
    if values.get("fail_on", SEVERITIES[0]) not in SEVERITIES:
        raise UsageError(
            f"{path}: fail_on is {values['fail_on']!r}", fix=f"one of {', '.join(SEVERITIES)}"
        )
    return Config(
        **values,
        suppress=_suppressions(path, document.get("suppress", [])),
        rules=_rules(path, document.get("rules", {})),
        collect=_table(path, "[collect]", document.get("collect", {}), CollectConfig),
        path=path,
    )


def read_collect(path: Path) -> CollectConfig:
    """The ``[collect]`` table of a configuration; see `load_config`."""
    return load_config(path).collect


def _suppressions(path: Path, entries: Any) -> tuple[Suppression, ...]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: suppress is no list of tables", fix="write [[suppress]]")
    found = []
    for number, entry in enumerate(entries, start=1):
        place = f"[[suppress]] number {number}"
        for key in ("code", "reason"):
            if not str(entry.get(key, "")).strip():
                raise UsageError(f"{path}: {place} has no {key}", fix=f'add {key} = "..."')
        if "where" in entry:
            raise _unknown(path, f"key 'where' in {place}", "where", ("variable", "module", "api"))
        found.append(_table(path, place, {**entry, "where": str(path)}, Suppression))
    return tuple(found)


def _rules(path: Path, tables: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        raise UsageError(f"{path}: rules is no table of tables", fix="write [rules.TC201]")
    return tables


def _table(path: Path, place: str, values: Any, kind: type[_Table]) -> _Table:
    if not isinstance(values, dict):
        name = place.strip("[]")
        raise UsageError(f"{path}: {name} is not a table", fix=f"write {place} on its own line")
    known = {one.name for one in fields(kind)}
    for key in values:
        if key not in known:
            raise _unknown(path, f"key {key!r} in {place}", key, known)
    return kind(**_values(path, f" in {place}", values, known, kind))


def _values(
    path: Path, place: str, table: Mapping[str, Any], names: Iterable[str], kind: Any
) -> dict[str, Any]:
    """What ``table`` holds of ``names``, each of the type that ``kind`` says."""
    types = {one.name: str(one.type) for one in fields(kind)}
    values: dict[str, Any] = {}
    for key in sorted(set(names) & set(table)):
        form, fits = _FORMS[types[key]]
        if not fits(table[key]):
            raise UsageError(f"{path}: {key}{place} is {table[key]!r}", fix=f"make it {form}")
        values[key] = tuple(table[key]) if isinstance(table[key], list) else table[key]
    return values


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml speaks of us. Others' files that cannot be read do not."""
    try:
        text = _text(path)
    except (OSError, UnicodeDecodeError):
        return False
    if "traincheck" not in text:  # the usual case, without a parser
        return False
    tool = _read_toml(path).get("tool", {})
    return isinstance(tool, dict) and "traincheck" in tool


def _text(path: Path) -> str:
    return read_regular(path, _MOST_BYTES).decode("utf-8")


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except OSError as error:
        raise UsageError(
            f"configuration {str(path)!r} cannot be read: {error.strerror}", fix="check the path"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise UsageError(
            f"configuration {str(path)!r} is not TOML: {error}", fix="correct the file"
        ) from error


def _unknown(path: Path, what: str, name: str, known: Iterable[str]) -> UsageError:
    like = nearest(name, known)
    is_like = like[:_MIN_LIKENESS] == name[:_MIN_LIKENESS]
    fix = f"did you mean {like!r}?" if is_like else f"known are {', '.join(sorted(known))}"
    return UsageError(f"{path}: unknown {what}", fix=fix)
