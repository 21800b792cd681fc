"""What commands about invariants say of them: why statements were kept or dropped.

What is found is for traincheck.infer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincheck.errors import OutputError, UsageError

if TYPE_CHECKING:
    from traincheck.infer.dropped import Dropped
    from traincheck.schema.claims import Invariant

_SHOWN = 40


def explain(path: str, text: str) -> None:
    """Tell what became of the statements that hold ``text``, from the files that are there."""
    from traincheck.infer.dropped import dropped_path, read_dropped
    from traincheck.schema.invariant_file import read_invariants

    kept, beside = read_invariants(path), dropped_path(path)
    if not beside.exists():
        raise UsageError(
            f"{path} has no list of dropped statements beside it: {beside} does not exist",
            fix="learn again: traincheck-infer -t DIR",
        )
    show_why(text, kept, read_dropped(beside))


def show_why(text: str, kept: Sequence[Invariant], dropped: Sequence[Dropped]) -> None:
    """What became of the statements that hold ``text``."""
    from traincheck.infer.dropped import search

    found = search(text, kept, dropped)
    if found.kept:
        say(f"\n{_statements(found.kept, 'kept')} {text!r}:")
    for kept_one in found.kept[:_SHOWN]:
        say(f"  {kept_one.text}\n    kept as {kept_one.id}")
    _tell_rest(len(found.kept))
    say(f"\n{_statements(found.dropped, 'dropped')} {text!r}:")
    for one in found.dropped[:_SHOWN]:
        detail = f": {one.detail}" if one.detail else ""
        examples = f"{one.positive} examples, {one.negative} counterexamples"
        say(f"  {one.text}\n    {one.reason}{detail} ({examples})")
    _tell_rest(len(found.dropped))
    if found.closest:
        say("No run suggests such a statement. The most similar ones:")
    for other in found.closest:
        say(f"  {other}")


def _statements(found: Sequence[object], what: str) -> str:
    return (
        f"1 {what} statement holds" if len(found) == 1 else f"{len(found)} {what} statements hold"
    )


def _tell_rest(count: int) -> None:
    if count > _SHOWN:
        say(f"  and {count - _SHOWN} more")


def refuse_output(output: str) -> None:
    """Before a long reading rather than after it."""
    path = Path(output)
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"{path.parent} is not a directory"
    else:
        return
    raise OutputError(
        f"{output}: cannot be written: {reason}", fix="choose a file in a writable directory"
    )


def say(text: str) -> None:
    """Text for people."""
    click.echo(text, err=True)
