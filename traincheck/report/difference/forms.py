"""A difference in each form: text, Markdown, JSON, JUnit, SARIF and annotations of GitHub."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TextIO
from xml.etree import ElementTree as ET

import orjson

from traincheck.diff.difference import Difference
from traincheck.diff.messages import texts_of
from traincheck.report.difference.lines import headline, place, resumed, rows, size_text
from traincheck.schema.words import printable, printable_json
from traincheck.version import VERSION

_INDENT, _WIDTH = 2, 15


def write_text(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write the report; `shown` further differences of the same step follow it."""
    lines = [resumed(difference), "", headline(difference), ""]
    if not lines[0]:
        lines = lines[2:]
    for name, texts in rows(difference):
        for number, text in enumerate(texts):
            label = name if number == 0 else ""
            lines.append(f"{' ' * _INDENT}{label:<{_WIDTH}}{text}")
    lines += _others(difference, shown)
    while lines and not lines[-1]:
        lines.pop()
    stream.write("".join(f"{printable(line)}\n" for line in lines))


def write_markdown(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write the report as Markdown: a heading, a list, and a table of the phases."""
    lines = [f"## {_escaped(headline(difference))}", ""]
    if difference.resume is not None:
        lines += [_escaped(resumed(difference)), ""]
    for name, texts in rows(difference):
        for number, text in enumerate(texts):
            lines.append(
                f"- **{name}**: {_escaped(text)}"
                if number == 0 and name
                else f"  - {_escaped(text)}"
            )
    if difference.phases:
        lines += ["", "| phase | differing | compared | not comparable |", "|---|---|---|---|"]
        lines += [
            f"| {c.phase.words} | {c.differing} | {c.compared} | {c.unknown} |"
            for c in difference.phases
        ]
    stream.write("".join(f"{printable(line)}\n" for line in [*lines, *_others(difference, shown)]))


def _others(difference: Difference, shown: int) -> list[str]:
    """The other differences of the step, if they are asked for."""
    if not (shown and difference.then):
        return []
    lines = ["", f"other differences of step {difference.first.step}:" if difference.first else ""]
    for item in difference.then[:shown]:
        a, b = texts_of(item)
        size = f"  {size_text(item.size)}" if item.size is not None else ""
        lines.append(f"  {item.phase.words:<16}{item.name}  {a} | {b}{size}")
    if len(difference.then) > shown:
        lines.append(f"  and {len(difference.then) - shown:,} more")
    return lines


def _escaped(text: str) -> str:
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return text


_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RULE = "first-difference"
_UNKNOWN_CAUSE = "unknown"


def write_json(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write one JSON object with a newline at its end."""
    text = orjson.dumps(difference.to_dict(), option=orjson.OPT_INDENT_2).decode()
    stream.write(printable_json(text) + "\n")


def write_junit(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write one test case, which fails with the first difference."""
    failures = "0" if difference.first is None else "1"
    counts = {"tests": "1", "failures": failures, "errors": "0"}
    suites = ET.Element("testsuites", {"name": "traincheck", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": "traincheck.diff", **counts})
    case = ET.SubElement(
        suite, "testcase", classname="traincheck.diff", name=_clean("runs are the same")
    )
    if difference.first is not None:
        failure = ET.SubElement(case, "failure", type=_code(difference))
        failure.set("message", _clean(headline(difference)))
        failure.text = _clean(_text(difference))
    elif not difference.same:
        ET.SubElement(case, "skipped", message=_clean(headline(difference)))
    ET.indent(suites)
    body = ET.tostring(suites, encoding="unicode")
    stream.write(f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n')


def write_sarif(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write SARIF 2.1.0 with one result, if there is a difference."""
    results: list[dict[str, Any]] = []
    if difference.first is not None:
        result: dict[str, Any] = {
            "ruleId": f"{_RULE}/{_code(difference)}",
            "level": "error",
            "message": {"text": _text(difference)},
            "properties": difference.to_dict(),
        }
        path, _, line = _where(difference).rpartition(":")
        if path and line.isdigit():
            region = {"startLine": int(line)}
            location = {"artifactLocation": {"uri": path}, "region": region}
            result["locations"] = [{"physicalLocation": location}]
        results.append(result)
    driver = {"name": "traincheck", "version": VERSION}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    text = orjson.dumps(log, option=orjson.OPT_INDENT_2).decode()
    stream.write(printable_json(text) + "\n")


def write_github(difference: Difference, stream: TextIO, shown: int = 0) -> None:
    """Write one annotation, if there is a difference."""
    if difference.first is None:
        return
    path, _, line = _where(difference).rpartition(":")
    at = f"file={_property(path)},line={line}," if path and line.isdigit() else ""
    title = _property(f"traincheck: {place(difference.first)}")
    stream.write(f"::error {at}title={title}::{_message(_text(difference))}\n")


def _text(difference: Difference) -> str:
    lines = [headline(difference)]
    lines += [
        f"{name}: {text}" if name else text for name, texts in rows(difference) for text in texts
    ]
    return "\n".join(printable(line) for line in lines)


def _where(difference: Difference) -> str:
    cause = difference.cause.where if difference.cause else ""
    return (difference.first.where if difference.first else "") or cause


def _code(difference: Difference) -> str:
    return difference.cause.code if difference.cause else _UNKNOWN_CAUSE


def _clean(text: str) -> str:
    return _NO_XML.sub("?", text)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(printable(text)).replace(":", "%3A").replace(",", "%2C")


FORMS: dict[str, Callable[[Difference, TextIO, int], None]] = {
    "text": write_text,
    "json": write_json,
    "markdown": write_markdown,
    "junit": write_junit,
    "sarif": write_sarif,
    "github": write_github,
}
