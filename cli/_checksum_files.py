"""Write reports of checksums to files or to stdout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traincheck.errors import OutputError, UsageError
from traincheck.schema.files import dump_json
from traincheck.store.checksum_layout import (
    CHECKSUMS,
    STATISTICS,
    check_names,
    read_reports,
    save_text,
    to_json,
    to_layout,
    to_yaml,
)

if TYPE_CHECKING:
    from traincheck.store.reader import TraceReader

_STEPS = re.compile(r"(\d{1,15})?(:)?(\d{1,15})?")
_MOST = 10**15


def write(
    reader: TraceReader,
    output: str | None,
    form: str,
    *,
    steps: str | None,
    rank: int | None,
    statistics: str | None,
    groups: str | None,
) -> int:
    """Write the reports of a run; returns their number.

    Args:
        reader: of the run.
        output: the folder; None for stdout.
        form: "yaml" or "json".
        steps: such as ``0:10`` or ``3``; None for all.
        rank: None for all.
        statistics: names with commas; None for all.
        groups: likewise.

    Raises:
        UsageError: an argument is not usable, or there is no report.
        OutputError: a file cannot be written.
        TraceFormatError: the run cannot be read.
    """
    wanted = _steps(steps)
    chosen = {
        "statistics": _names(statistics, STATISTICS, "statistic"),
        "checksums": _names(groups, CHECKSUMS, "group of checksums"),
    }
    if output is not None and Path(output).is_file():
        raise OutputError(f"output path {output!r} is a file", fix="name a folder with -o")
    count = 0
    for report in read_reports(reader, wanted, rank):
        layout = to_layout(report, **chosen)
        if output is not None:
            text = to_yaml(layout) if form == "yaml" else to_json(layout)
            save_text(Path(output) / f"step={report.step}/rank{report.rank}.{form}", text)
        elif form == "json":  # one value a line
            click.echo(dump_json(layout).decode())
        else:  # a stream of documents
            click.echo(("---\n" if count else "") + to_yaml(layout), nl=False)
        count += 1
    if not count:
        raise UsageError(
            f"{reader.path} has no checksums of these steps and ranks",
            fix="record the run with traincheck-collect --checksums all; see --steps and --rank",
        )
    return count


def _names(text: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if text is None:
        return known
    names = tuple(part.strip() for part in text.split(","))
    check_names(names, known, what)
    return names


def _steps(text: str | None) -> range | None:
    if text is None:
        return None
    found = _STEPS.fullmatch(text)
    if not text or found is None or text == ":":
        raise UsageError(f"steps are {text!r}", fix="give them as 0:10, 5: or 3")
    first, colon, last = found.groups()
    low = int(first or 0)
    if not colon:
        return range(low, low + 1)
    return range(low, int(last) if last else _MOST)
