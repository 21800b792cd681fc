"""Runs whose DataLoader workers tell of their random generators."""

from __future__ import annotations

from collections.abc import Iterable

from tests.builders import TraceBuilder
from tests.rules.batches import trained_on
from traincheck.schema.events import Event
from traincheck.schema.observations.data import WorkerRng

Drawn = dict[str, tuple[str, str]]  # generator -> states before and after the first batch


def worker(number: int, drawn: Drawn, *, epoch: int = 0, loader: str = "loader0") -> list[Event]:
    """What one worker process writes."""
    trace = TraceBuilder(pid=2000 + 10 * epoch + number, worker=True).process(worker=True)
    return trace.mark(
        WorkerRng.text,
        worker=number,
        workers=2,
        seed="1",
        loader=loader,
        epoch=epoch,
        start={name: states[0] for name, states in drawn.items()},
        after={name: states[1] for name, states in drawn.items()},
    ).build()


def run_with(
    workers: Iterable[list[Event]], epochs: int = 1, loader: str = "loader0"
) -> list[Event]:
    """Three steps an epoch over a loader, and what its workers wrote."""
    steps = [
        {"index": index, "epoch": epoch, "loader": loader}
        for epoch in range(epochs)
        for index in range(3)
    ]
    main = trained_on(steps).build()
    return [main[0], *(event for events in workers for event in events), *main[1:]]
