"""The documentation of a rule in parts, for the command, the pages and the reports.

The text is the docstring of the rule's class and nothing else.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.rules.options import options_of
from traincheck.schema.protocols import Rule

# Beginning of a code -> what such rules are about.
THEMES: Mapping[str, str] = {
    "TC00": "Probes",
    "TC03": "Loss provenance",
    "TC05": "Origins of values",
    "TC06": "Settings, measures and data",
    "TC07": "Settings, measures and data",
    "TC08": "Replicas and gradients",
    "TC1": "Parameters and optimizer",
    "TC2": "Step window",
    "TC3": "Modes and arguments",
    "TC4": "Distributed",
    "TC5": "Data and random numbers",
    "TC6": "Checkpoints and averages",
    "TC7": "Numerics",
    "TC8": "Dtypes and devices",
    "TC9": "Configuration and efficiency",
}
OTHER = "Other packages"
_TITLE = re.compile(r"(?:(?P<code>[A-Z]+\d+)\s+)?(?:(?P<name>[a-z0-9-]+): )?(?P<summary>.*)")
_HEADING = re.compile(r"([A-Z][\w ]*):")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDocs:
    """A rule's docstring.

    Attributes:
        name: the pattern that it finds, ``missing-zero-grad``.
        aliases: names that it had before.
        sections: texts by heading, without indent.
    """

    code: str
    name: str
    aliases: tuple[str, ...]
    summary: str
    severity: str
    theme: str
    sections: Mapping[str, str]
    text: str


def theme_of(code: str) -> str:
    """The theme of a code."""
    return next((theme for start, theme in THEMES.items() if code.startswith(start)), OTHER)


def docs_of(rule: Rule) -> RuleDocs:
    """The docstring of a rule, in its parts."""
    code = rule.info.code
    text = inspect.cleandoc(type(rule).__doc__ or rule.info.title)
    text = text if text.startswith(code) else f"{code} {text}"
    title, *body = text.splitlines()
    match = _TITLE.fullmatch(title)
    assert match is not None  # its last part takes anything
    return RuleDocs(
        code=code,
        name=match["name"] or "",
        aliases=getattr(rule, "aliases", ()),
        summary=match["summary"].rstrip("."),
        severity=rule.info.severity,
        theme=theme_of(code),
        sections=_sections(body),
        text=text,
    )


def _sections(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        heading = _HEADING.fullmatch(line)
        if heading:
            current = found.setdefault(heading[1], [])
        else:
            current.append(line)
    return {name: inspect.cleandoc("\n".join(["", *part])) for name, part in found.items()}


def options_text(rule: Rule) -> str:
    """The options of a rule with their defaults, as a configuration spells them; "" for none."""
    options = options_of(rule).values()
    return "\n".join(f"{option.name} = {_toml(option.default)}" for option in options)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
