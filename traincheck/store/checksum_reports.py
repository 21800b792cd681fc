"""Read the checksums of a run: one report for each step and rank that has them."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.schema.events import ChecksumEvent, StepEvent
from traincheck.store.checksum_layout import ChecksumReport
from traincheck.store.reader import TraceReader


def read_reports(
    reader: TraceReader, steps: range | None = None, rank: int | None = None
) -> Iterator[ChecksumReport]:
    """The reports of a run, by step and then by rank.

    Args:
        reader: of the run.
        steps: only those of these steps; None for all.
        rank: only those of this rank; None for all.

    Raises:
        TraceFormatError: the run cannot be read.
    """
    open_ones: dict[tuple[int, str], list[ChecksumEvent]] = {}
    for event in reader.events():
        if rank is not None and event.rank != rank:
            continue
        process = event.rank, event.stream.partition("-")[0]
        if isinstance(event, ChecksumEvent):
            open_ones.setdefault(process, []).append(event)
        elif isinstance(event, StepEvent) and process in open_ones:
            found = open_ones.pop(process)
            yield from _report(found, steps, is_torn=not event.recorded)
    for found in open_ones.values():  # the run was killed, or is going on
        yield from _report(found, steps, is_torn=True)


def _report(
    events: list[ChecksumEvent], steps: range | None, *, is_torn: bool
) -> Iterator[ChecksumReport]:
    step, rank = events[-1].step, events[-1].rank
    if step is None or (steps is not None and step not in steps):
        return
    notes = ("the record of this step is not complete",) if is_torn else ()
    yield ChecksumReport(step=step, rank=rank, events=tuple(events), notes=notes)
