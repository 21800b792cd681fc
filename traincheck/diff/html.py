"""A comparison as HTML for notebooks, from its JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traincheck.diff.phases import Phase
from traincheck.schema.shown import facts_html, table_html, text_html
from traincheck.schema.words import counted

_SHOWN = 20  # facts of the environment
_SIDES = (("-", "a"), ("+", "b"))
_COLOURS = {True: "#2e7d32", False: "#c62828"}


def difference_html(document: Mapping[str, Any]) -> str:
    """A headline, the cause and its evidence, and the phases of the step."""
    first, steps = document["first"], counted(document["steps"], "step")
    if first is not None:
        headline = f"first difference at step {first['step']:,}: {first['message']}"
    elif document["same"]:
        headline = f"no difference in {steps}, {document['closeness']}"
    else:
        headline = "nothing could be compared"
    colour = _COLOURS[bool(document["same"])]
    head = f"<b style='color:{colour}'>{text_html(headline)}</b>"
    phases = table_html(
        ("phase", "differing", "compared", "not comparable"),
        (
            (
                text_html(Phase(one["phase"]).words),
                *(f"{one[name]:,}" for name in ("differing", "compared", "unknown")),
            )
            for one in document["phases"]
        ),
    )
    body = facts_html(_facts(document))
    return f"<div>{head}{body}{phases if document['phases'] else ''}</div>"


def _place(change: Mapping[str, Any]) -> str:
    path = change["path_b"] or change["path_a"]
    return f"{path.rpartition('/')[2]}:{change['at_b'] or change['at_a']} {change['function']}"


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "A", document["a"]
    yield "B", document["b"]
    first, cause = document["first"], document["cause"]
    if first is not None:
        yield "in A", first["a"]
        yield "in B", first["b"]
        yield "where", first["where"] or ""
    if cause is not None:
        yield "cause", cause["text"]
        yield "", "\n".join(cause["details"])
        yield "fix", cause["fix"]
        yield "changed at", cause["where"] or ""
    for one in document["candidates"]:
        yield "possible", one["text"]
    for change in document["changes"]:
        lines = [f"{mark} {text}" for mark, side in _SIDES for _, text in change[side]]
        yield "code differs", "\n".join([_place(change), *lines[:_SHOWN]])
    environment = document["environment"]
    shown = [f"{one['name']}: {one['a']} | {one['b']}" for one in environment[:_SHOWN]]
    if len(environment) > _SHOWN:
        shown.append(f"and {len(environment) - _SHOWN:,} more")
    yield "environment", "\n".join(shown)
    yield "notes", "\n".join(document["notes"])
