"""The configuration of a project: ``traincheck.toml``, or ``[tool.traincheck]`` in pyproject.toml.

Tables are decoded into the types below, which hold the defaults.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import asdict

from traincheck.check.suppression.policy import Suppression
from traincheck.errors import UsageError, nearest
from traincheck.schema.files import read_regular
from traincheck.schema.findings import SEVERITIES
from traincheck.schema.record import Complaint, Record, complaint_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "traincheck.toml"
_PYPROJECT = "pyproject.toml"
_MOST_BYTES = 1 << 20  # the parser is slow, and no configuration is this long
_MIN_LIKENESS = 2  # letters a name must share with another's beginning to be taken for it

_Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\S")]


class CollectConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[collect]``: options of traincheck-collect by their long names.

    output: run directory. invariants: invariant files whose needs are recorded.
    rules: record what the built-in rules need. every, warmup: see Settings.
    level: default or deep. instrument: packages of the user.
    view: diff, to compare runs. outputs: all, root, or a glob of modules whose outputs are
    fingerprinted in it. sketch: record sketches in it.
    """

    output: str | None = None
    invariants: tuple[str, ...] = ()
    rules: bool = False
    every: int | None = None
    warmup: int | None = None
    level: str | None = None
    view: str | None = None
    outputs: str | None = None
    sketch: bool = False
    instrument: tuple[str, ...] = ()


class MetricConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table in ``metrics`` of ``[monitor]``; see `MetricRequest`.

    on: kind of tensor, by its long or short name. statistics: of it. modules: a regular expression.
    per: a dimension, for one number for each index of it.
    """

    on: str
    statistics: tuple[str, ...] = ()
    modules: str = ""
    per: str = ""


class MonitorConfig(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[monitor]``: options of traincheck monitor by their long names.

    metrics: texts such as "act:rms", or tables.
    """

    output: str | None = None
    every: int | None = None
    warmup: int | None = None
    metrics: tuple[str | MetricConfig, ...] = ()
    modules: str = ""
    exclude: str = ""
    plugin: tuple[str, ...] = ()
    reference: str = ""
    rcc: bool = False


class _Common(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Literal["info", "warning", "error"] = "warning"
    rules: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    collect: CollectConfig = CollectConfig()
    monitor: MonitorConfig = MonitorConfig()
    sinks: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


class _Suppress(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: _Text
    reason: _Text
    variable: str | None = None
    module: str | None = None
    api: str | None = None


class _File(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    suppress: tuple[_Suppress, ...] = ()


class Config(_Common, frozen=True, kw_only=True):
    """The configuration of a project.

    Attributes:
        select: codes of rules, beginnings of codes, names of relations; none for all.
        ignore: the same, to be left out.
        fail_on: lowest severity of a finding that makes the exit status 1.
        suppress: violations that are suppressed, with reasons.
        rules: options of rules, by code.
        collect: options of traincheck-collect.
        monitor: options of traincheck monitor.
        sinks: settings of receivers by name; a receiver that has a table here is used.
        path: the file; None for the defaults.
    """

    suppress: tuple[Suppression, ...] = ()
    path: Path | None = None

    def narrowed(self, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Config:
        """With codes of the command line, which override the file.

        A code that is selected is checked even where the file ignores it.
        """
        kept = () if select else self.ignore
        return self.replace(select=tuple(select) or self.select, ignore=tuple(ignore) or kept)


def find_config(start: Path) -> Path | None:
    """The nearest configuration from ``start`` upward.

    In a directory, traincheck.toml comes before pyproject.toml, which is used only if it has a
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

    Codes and options of rules are looked up when the engine is made.

    Raises:
        UsageError: the file cannot be read, is not TOML, or has an unknown table, key or type.
    """
    path = path or find_config(start or Path.cwd())
    if path is None:
        return Config()
    document = _read_toml(path)
    tool = document.get("tool")
    if path.name == _PYPROJECT or (isinstance(tool, dict) and "traincheck" in tool):
        for name in ("tool", "traincheck"):
            document = document.get(name, {})
            if not isinstance(document, dict):
                raise UsageError(
                    f"{path}: {name} is {document!r}, not a table", fix="write [tool.traincheck]"
                )
    try:
        form = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        complaint = complaint_of(document, error)
        raise _usage_error(_place(path, complaint), complaint) from error
    suppress = (Suppression(**asdict(entry), where=str(path)) for entry in form.suppress)
    return Config(**{**asdict(form), "suppress": tuple(suppress)}, path=path)


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml has our table. One that cannot be read has none."""
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


def _read_toml(path: Path) -> dict[str, Any]:
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


_HEADER = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")
# How msgspec names types, and what to write in TOML.
_FORMS = {
    "str": "a string",
    "int": "a whole number",
    "bool": "true or false",
    "array": "a list of strings",
}
_SEVERITY = f"one of {', '.join(SEVERITIES)}"
# Of each table: the type with its keys, its form, and how it is written.
_TABLES: dict[str, tuple[type[Record], str, str]] = {
    "": (_File, "a table", "write [tool.traincheck]"),
    "collect": (CollectConfig, "a table", "write [collect] on its own line"),
    "monitor": (MonitorConfig, "a table", "write [monitor] on its own line"),
    "suppress": (_Suppress, "a list of tables", "write [[suppress]]"),
    "rules": (_File, "a table of tables", "write [rules.TC201]"),
    "sinks": (_File, "a table of tables", "write [sinks.webhook]"),
}


def _usage_error(path: str, found: Complaint) -> UsageError:
    """The fault in the file, and its correction."""
    table = found.steps[0] if found.steps and found.steps[0] in _TABLES else ""
    kind, form, fix = _TABLES[str(table)]
    if kind is MonitorConfig and len(found.steps) > 1:  # a table in a list of it
        kind = MetricConfig
    place = f"[{table}]" if table else ""
    if table == "suppress" and len(found.steps) > 1:
        place = f"[[suppress]] number {int(found.steps[1]) + 1}"
    if found.unknown:
        value = found.value[found.unknown]
        return _unknown(path, found.unknown, value, place, kind.__struct_fields__)
    key = found.missing or found.at.rpartition(".")[2]
    if found.missing or "regex" in found.reason:
        return UsageError(f"{path}: {place} has no {key}", fix=f'add {key} = "..."')
    if found.expected == ("object",) or found.steps == ("suppress",):
        return UsageError(f"{path}: {table} is {found.value!r}, not {form}", fix=fix)
    within = f" in {place}" if place else ""
    written = f"make it {_FORMS[found.expected[0]]}" if found.expected else _SEVERITY
    return UsageError(f"{path}: {key}{within} is {found.value!r}", fix=written)


def _place(path: Path, found: Complaint) -> str:
    """The file, with the line where the key or table is written, if it is found."""
    number = line_of(_text(path), found.steps, found.unknown or found.at.rpartition(".")[2])
    return f"{path}" if number is None else f"{path}:{number}"


def line_of(text: str, steps: Sequence[str | int], key: str) -> int | None:
    """The line of a TOML file that writes a key, in the table that it belongs to."""
    table = str(steps[0]) if steps else ""
    index = next((int(step) for step in steps if isinstance(step, int)), 0)
    header, seen, found = "", -1, None
    for number, line in enumerate(text.split("\n"), 1):
        head = _HEADER.match(line)
        if head:
            header = head[1].removeprefix("tool.traincheck").lstrip(".")
            is_table = header.partition(".")[0] == table and table
            seen += bool(is_table)
            if header == key or (is_table and seen == index):
                found = number
        elif (written := _KEY.match(line)) and written[1] in (key, table):
            is_here = header.partition(".")[0] in ("", table) and seen in (-1, index)
            if is_here or not table:
                return number
    return found


def _unknown(path: str, name: str, value: Any, place: str, known: Sequence[str]) -> UsageError:
    is_table = isinstance(value, dict) and not place
    what = f"table [{name}]" if is_table else f"key {name!r}"
    within = f" in {place}" if place else ""
    like = nearest(name, known)
    is_like = like[:_MIN_LIKENESS] == name[:_MIN_LIKENESS]
    fix = f"did you mean {like!r}?" if is_like else f"use one of {', '.join(sorted(known))}"
    return UsageError(f"{path}: unknown {what}{within}", fix=fix)
