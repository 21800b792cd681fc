"""Write generated pages: cli.md, rules.md, relations.md, tables of facts.md and others.

The JSON schema of invariant files is written, too. The pages of rules are made when the site is
built, see site_hooks.py.

Nothing else is written. `--check` writes nothing and fails when a page is stale.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from traincheck.facts.table import KINDS
from traincheck.relations.registry import BUILT_IN
from traincheck.rules.docs import RuleDocs, docs_of, options_text
from traincheck.rules.table import RULES
from traincheck.schema import events, values
from traincheck.schema.invariant_file import SCHEMA_FILE, json_schema
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.registry import OBSERVATIONS
from traincheck.schema.protocols import Rule
from traincheck.store.columnar import INTEGER, JSON, SHAPE, layout

DOCS = Path(__file__).parent
RULE_PAGES = DOCS / "rules"
HEADER = ("seq", "time_ns", "step", "stage", "rank", "stream", "kind")
ON_DISK = {"seq": "n", "time_ns": "t", "step": "s", "stage": "g", "kind": "k"}
CALL_ON_DISK = {"span": "id", "start_ns": "start"}
IN_FILE_NAME = ("rank", "stream")
BEGIN, END = "<!-- begin generated: {} -->", "<!-- end generated: {} -->"
CLI_INTRODUCTION = """\
`traincheck-collect`, `traincheck-infer` and `traincheck-check` are short for `traincheck collect`,
`traincheck infer` and `traincheck check`. Text for people goes to the terminal or stderr, data to
stdout or to `--output`. `python -m traincheck` is the same as `traincheck`.

Commands that read a recorded run need no extra. In a checkout, `pip install ".[torch]"` installs
traincheck with an extra. `pip install 'traincheck[torch]'` adds one to an installed traincheck.

| extra | for |
|---|---|
| `torch` | commands that record: `run`, `collect`, `monitor`, `profile`, `probe` |
| `lightning`, `transformers`, `accelerate` | the [callbacks](in-process.md) for these frameworks |
| `pytest` | the fixture [`traincheck_run`](ci.md) |
| `hdf5` | [metrics](monitor.md) as HDF5 files |
| `perfetto` | [`traincheck trace export`](live.md) for Perfetto |
| `dev` | development: `make install` |

Completion works in bash 4.4 or later, zsh and fish. It completes subcommands, options, codes of
rules, names of formats and presets, and paths. Add the line for your shell to its start-up file:

```sh
eval "$(_TRAINCHECK_COMPLETE=bash_source traincheck)"     # ~/.bashrc
eval "$(_TRAINCHECK_COMPLETE=zsh_source traincheck)"      # ~/.zshrc
_TRAINCHECK_COMPLETE=fish_source traincheck | source      # ~/.config/fish/config.fish
```

The variable of `traincheck-collect` is `_TRAINCHECK_COLLECT_COMPLETE`, and so on."""
_PLAIN_TYPES = {
    "Int64": "int",
    "Mapping[": "dict[",
    "Sequence[": "list[",
    "tuple[int, ...]": "list[int]",
    "tuple[ParamGroup, ...]": "list[group]",
    "float | int]": "float]",
    "ParamGroup": "group",
    "TensorSummary": "summary",
    "Value": "JSON",
    "None": "null",
}
_ATTRIBUTE = re.compile(r"(\w+): (.*)")


def pages() -> dict[Path, str]:
    """Every generated page and its content."""
    trace = DOCS / "trace-format.md"
    text = trace.read_text(encoding="utf-8")
    for name, table in (("header", header_table()), ("kinds", kind_sections())):
        text = replaced(text, name, table)
    frames = DOCS / "tables.md"
    columns = replaced(frames.read_text(encoding="utf-8"), "columns", column_tables())
    relations = DOCS / "relations.md"
    known = replaced(relations.read_text(encoding="utf-8"), "relations", relation_sections())
    facts = DOCS / "facts.md"
    facts_text = replaced(facts.read_text(encoding="utf-8"), "kinds", fact_table())
    return {
        DOCS / "cli.md": cli_page(),
        facts: facts_text,
        DOCS / "rules.md": rules_page([docs_of(rule) for rule in RULES]),
        trace: text,
        frames: columns,
        relations: known,
        SCHEMA_FILE: json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def fact_table() -> str:
    """Kinds of facts with their classes, and what they do not say."""
    rows = [(f"`{kind.name}`", ", ".join(kind.classes), kind.unsaid) for kind in KINDS]
    return table(rows, "kind", "classes", "what it does not say")


def relation_sections() -> str:
    """The docstrings of relations, headings in bold."""
    parts = []
    for relation in BUILT_IN:
        summary, *sections = inspect.cleandoc(type(relation).__doc__ or "").split("\n\n")
        parts += [f"## {relation.name}", summary]
        for section in sections:
            heading, _, text = section.partition("\n")
            text = inspect.cleandoc(text)
            gap = "\n\n" if text.startswith("- ") else " "
            parts.append(f"**{heading}**{gap}{text}".replace("``", "`"))
    return "\n\n".join(parts)


def replaced(text: str, name: str, new: str) -> str:
    """Put `new` between the two markers of a section."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{new.strip()}\n\n{end}{after}"


def described(docstring: str) -> dict[str, str]:
    """Field name -> text, from lines `name: text` and the lines indented under them."""
    found: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        stripped = line.strip()
        match = _ATTRIBUTE.match(stripped)
        if match:
            current = match[1]
            found[current] = match[2]
        elif current and stripped:
            found[current] += f" {stripped}"
        else:
            current = ""
    return found


def table(rows: Sequence[tuple[str, ...]], *titles: str) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    escaped = (tuple(cell.replace("|", "\\|").replace("``", "`") for cell in row) for row in rows)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in escaped)])


def header_table() -> str:
    texts = described(events.__doc__ or "")
    rows = [
        (f"`{name}`", f"`{ON_DISK[name]}`" if name in ON_DISK else "file name", texts[name])
        for name in HEADER
    ]
    return table(rows, "field", "on disk", "meaning")


def kind_sections() -> str:
    return "\n\n".join(kind_section(event_type) for event_type in events.EVENT_TYPES)


def kind_section(event_type: Any) -> str:
    doc = event_type.__doc__ or ""
    texts = described(doc)
    kind = event_type.kind
    types = inspect.get_annotations(event_type)
    short = CALL_ON_DISK if kind == "call" else {}
    rows = [
        (f"`{short.get(name, name)}`", f"`{type_text(types[name])}`", texts[name])
        for name in event_type.__struct_fields__[len(HEADER) - 1 :]
    ]
    summary = doc.split("\n", 1)[0].replace("``", "`")
    section = f"### {kind}\n\n{summary}\n\n{table(rows, 'key', 'type', 'meaning')}"
    if kind == "optimizer":
        section += "\n\nA group is an object with `hyper`, `params` (names) and `ids` (identities)."
    if kind == "state":
        section += f"\n\n{summary_table()}"
    if kind == "mark":
        section += f"\n\n{observation_tables()}"
    return section


DTYPES = {
    INTEGER: "Int64",
    SHAPE: "tuple of int",
    JSON: "object",
    "string": "string",
    "bool": "boolean",
}


def column_tables() -> str:
    """The columns of each table, with their dtypes; those that all tables have come first."""
    kinds = {event_type.kind: layout(event_type.kind) for event_type in events.EVENT_TYPES}
    first = next(iter(kinds.values()))
    shared = [name for name in first if all(name in columns for columns in kinds.values())]
    common = [(f"`{name}`", DTYPES[first[name]]) for name in shared]
    parts = ["Every table:", table(common, "column", "dtype")]
    rows = [(f"`{kind}`", _columns_text(columns, set(shared))) for kind, columns in kinds.items()]
    parts += ["In addition, by kind of event:", table(rows, "kind", "columns")]
    return "\n\n".join(parts)


def _columns_text(columns: Mapping[str, str], shared: set[str]) -> str:
    named = [(name, DTYPES[form]) for name, form in columns.items() if name not in shared]
    return ", ".join(f"`{name}` {dtype}" for name, dtype in named) or "none"


def observation_tables() -> str:
    """The observations, and the keys in the data of each mark."""
    rows = [
        (
            f"`{each.text}`",
            f"`{each.need}`" if each.need else "always",
            each.instrument,
            f"{summary_of(each)} {keys_text(each)}",
        )
        for each in OBSERVATIONS
    ]
    return (
        "Observations are marks with these texts. `needs` is the state that a selective trace must "
        "name in `recorded` to hold them. Without the instrument they are not recorded.\n\n"
        + table(rows, "text", "needs", "instrument", "observed, and its data")
    )


def summary_of(observation: type[Observation]) -> str:
    return inspect.cleandoc(observation.__doc__ or "").partition("\n")[0]


def keys_text(observation: type[Observation]) -> str:
    """The keys of its data, each with its meaning."""
    texts = described(observation.__doc__ or "")
    named = (
        (observation.keys.get(field.name, field.name), texts[field.name].rstrip("."))
        for field in fields(observation)  # type: ignore[arg-type]  # a dataclass
    )
    return "; ".join(f"`{key}`: {text}" for key, text in named) + "."


def type_text(annotation: Any) -> str:
    """The JSON type of a field, in the notation of Python."""
    text = str(annotation)
    for python, plain in _PLAIN_TYPES.items():
        text = text.replace(python, plain)
    return text


def summary_table() -> str:
    texts = described(values.TensorSummary.__doc__ or "")
    types = inspect.get_annotations(values.TensorSummary)
    rows = [
        (f"`{name}`", f"`{type_text(types[name])}`", texts[name])
        for name in values.TensorSummary.__struct_fields__
    ]
    return "A summary:\n\n" + table(rows, "key", "type", "meaning")


def cli_module() -> ModuleType:
    """`traincheck.cli.main`, also from a checkout that is not installed."""
    if importlib.util.find_spec("traincheck.cli") is None:
        sys.exit("traincheck is not installed: make install")
    return importlib.import_module("traincheck.cli.main")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name, groups before their members."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            for member in sorted(command.commands):
                yield from walk(f"{name} {member}", command.commands[member])

    yield from walk("traincheck", cli_module().main)


def help_text(name: str, command: click.Command) -> str:
    # The settings of the group reach its members, and click keeps the help option it made first.
    settings = {**cli_module().main.context_settings, "max_content_width": 100}
    context = click.Context(command, info_name=name, terminal_width=100, **settings)
    return command.get_help(context)


def cli_page() -> str:
    parts = [
        "# Command lines",
        "Generated by `make docs` from `--help`; do not edit.",
        CLI_INTRODUCTION,
    ]
    for name, command in commands():
        parts += [f"## {name}", f"```text\n{help_text(name, command)}\n```"]
    return "\n\n".join(parts) + "\n"


def rule_pages() -> dict[str, str]:
    """The page of each rule, by its path in the site."""
    return {f"rules/{rule.info.code}.md": rule_page(rule) for rule in RULES}


def rules_page(known: Sequence[RuleDocs]) -> str:
    parts = [
        "# Built-in rules",
        "Generated by `make docs` from the rules; do not edit.",
        "Rules need no reference run. `traincheck rules --explain CODE` prints the page of a rule. "
        "See [living with rules](living-with-rules.md) to select rules, set their options and "
        "accept findings.",
    ]
    for theme, group in groupby(known, key=lambda docs: docs.theme):
        rows = [(d.code, d.name, d.severity, d.summary) for d in group]
        parts += [f"## {theme}", table(rows, "code", "name", "severity", "finds")]
    return "\n\n".join(parts) + "\n"


def rule_page(rule: Rule) -> str:
    """The docstring of a rule: its first line as a title, its headings as headings."""
    docs = docs_of(rule)
    has_code = not docs.summary.partition(" ")[0].isalpha()  # zero_grad() keeps its letters
    parts = [
        f"# {docs.code} {docs.name}",
        f"{docs.summary if has_code else docs.summary[:1].upper() + docs.summary[1:]}.",
        f"Severity: {docs.severity}. Theme: {docs.theme.lower()}. [All rules](../rules.md)",
    ]
    if docs.aliases:
        parts.append(f"Earlier name: {', '.join(docs.aliases)}.")
    for heading, text in docs.sections.items():
        parts += [f"## {heading}", text]
    options = options_text(rule)
    if options:
        parts += [
            "Defaults, in the syntax of `traincheck.toml`:",
            f"```toml\n[rules.{docs.code}]\n{options}\n```",
        ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def left_over() -> list[Path]:
    """Pages of rules in the repository: they are made when the site is built."""
    return sorted(RULE_PAGES.glob("*.md"))


def main() -> None:
    stale = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    surplus = left_over()
    names = ", ".join(path.name for path in [*stale, *surplus])
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {names}; run `make docs`" if names else 0)
    texts = pages()
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
    for path in surplus:
        path.unlink()
    print(f"written: {names}" if names else "nothing to do")


if __name__ == "__main__":
    main()
