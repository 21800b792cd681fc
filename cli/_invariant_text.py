"""Text about invariants: details of one, and why statements were kept or dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from traincheck.errors import UsageError
from traincheck.schema.words import counted, printable, printable_json, printable_lines

if TYPE_CHECKING:
    from traincheck.infer.dropped import Dropped
    from traincheck.schema.claims import Invariant

_SHOWN = 40


def explain_dropped(path: str, text: str) -> None:
    """Explain the statements that contain ``text``, from the files that exist."""
    from traincheck.infer.dropped import dropped_path, read_dropped
    from traincheck.schema.invariant_file import read_invariants

    kept, beside = read_invariants(path), dropped_path(path)
    if not beside.exists():
        raise UsageError(
            f"{beside}, the list of dropped statements, does not exist",
            fix="learn again: traincheck-infer --force -t DIR",
        )
    show_why(text, kept, read_dropped(beside))


def show_why(text: str, kept: Sequence[Invariant], dropped: Sequence[Dropped]) -> None:
    """Print which statements that contain ``text`` were kept, and why others were dropped."""
    from traincheck.infer.dropped import search

    found = search(text, kept, dropped)
    if found.kept:
        print_message(f"\n{_statements(found.kept, 'kept')} {text!r}:")
    for kept_one in found.kept[:_SHOWN]:
        print_message(f"  {kept_one.text}\n    kept as {kept_one.id}")
    _print_left(len(found.kept))
    print_message(f"\n{_statements(found.dropped, 'dropped')} {text!r}:")
    for one in found.dropped[:_SHOWN]:
        detail = f": {one.detail}" if one.detail else ""
        examples = f"{one.positive} examples, {one.negative} counterexamples"
        print_message(f"  {one.text}\n    {one.reason}{detail} ({examples})")
    _print_left(len(found.dropped))
    if found.closest:
        print_message("No run suggests such a statement. The most similar statements are:")
    for other in found.closest:
        print_message(f"  {other}")


def _statements(found: Sequence[object], what: str) -> str:
    return (
        f"1 {what} statement contains"
        if len(found) == 1
        else f"{len(found)} {what} statements contain"
    )


def _print_left(count: int) -> None:
    if count > _SHOWN:
        print_message(f"  and {count - _SHOWN} more")


def severity(one: Invariant) -> str:
    """The severity of its findings."""
    from traincheck.relations.registry import RELATIONS

    relation = RELATIONS.get(one.hypothesis.relation)
    try:
        return (
            "unknown"
            if relation is None
            else str(relation.info(one.hypothesis, one.id, one.text).severity)
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return "unknown"  # parameters of another version


def summary_json(one: Invariant) -> dict[str, Any]:
    """The columns of a list, as JSON."""
    return {
        "id": one.id,
        "relation": one.hypothesis.relation,
        "severity": severity(one),
        "examples": one.support.positive,
        "confidence": one.confidence,
        "text": one.text,
    }


def cells(one: Invariant) -> list[str]:
    """The columns of a list, as text."""
    known = summary_json(one)
    return [
        f"{one.id:<24}",
        f"{known['relation']:<12}",
        f"{known['severity']:<7}",
        f"{known['examples']:>7}",
        f"{one.confidence:.4f}",
        one.text,
    ]


def details(one: Invariant, file: str) -> list[tuple[str, str]]:
    """Names and values of what is known about an invariant."""
    from traincheck.infer.dropped import dropped_path, read_dropped

    support = one.support
    always = "none: there is no counterexample"
    excluded = f"; the condition excludes {support.negative} counterexamples"
    condition = " or ".join(
        " and ".join(f"{c.feature} {c.op} {c.value}" for c in clause)
        for clause in one.precondition.clauses
    )
    path = dropped_path(file)
    others = sum(d.detail == one.text for d in read_dropped(path)) if path.exists() else 0
    needs = [*sorted(one.needs.calls), *sorted(one.needs.states), *sorted(one.needs.kinds)]
    needs += [f"statistics of {name}" for name in sorted(one.needs.stats)]
    return [
        ("id", one.id),
        ("relation", one.hypothesis.relation),
        ("severity", severity(one)),
        ("params", json.dumps(dict(one.hypothesis.params), ensure_ascii=False)),
        ("condition", condition or always),
        (
            "examples",
            f"{support.positive} in {counted(support.steps, 'step')}"
            f" of {counted(support.runs, 'run')}" + (excluded if support.negative else ""),
        ),
        ("confidence", f"{one.confidence} (probability that it is not coincidence)"),
        ("why kept", "it holds in full, selective and sampled replays of the reference runs"),
        ("implies", counted(others, "dropped statement") if others else "no dropped statements"),
        ("needs", ", ".join(needs) or "nothing"),
    ]


def print_message(text: str) -> None:
    """Text for people, on stderr."""
    click.echo(printable_lines(text), err=True)


def print_line(line: str) -> None:
    """One line of a result."""
    click.echo(printable(line))


def print_json(value: Any) -> None:
    """A result as indented JSON."""
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))
