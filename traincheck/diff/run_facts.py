"""A run as the comparison sees it beside its steps: its processes, loads, saves and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from traincheck.diff.records import RECORDS, CallRecord
from traincheck.diff.sources import Change, changes_between, program_of
from traincheck.diff.steps import StepView, step_views
from traincheck.schema.events import CheckpointEvent, MarkEvent, OptimizerEvent, RngEvent
from traincheck.schema.torch_api import DDP_INIT
from traincheck.store.reader import TraceReader

_MOST = 10_000  # of each kind of record that is kept of a whole run


@dataclass(slots=True)
class RankFacts:
    """The records of one rank that are kept over its steps.

    Attributes:
        loads, saves: checkpoints with the step they belong to.
        seeds: the seeds of generators, in order.
        optimizers: their creations and changes.
        marks: observations, those of workers among them.
        ddp: the calls that wrapped a model.
        last: the step before the current one.
    """

    loads: list[CheckpointEvent] = field(default_factory=list)
    saves: list[CheckpointEvent] = field(default_factory=list)
    seeds: list[RngEvent] = field(default_factory=list)
    optimizers: list[OptimizerEvent] = field(default_factory=list)
    marks: list[MarkEvent] = field(default_factory=list)
    ddp: list[CallRecord] = field(default_factory=list)
    last: StepView | None = None

    def see(self, view: StepView) -> None:
        """Keep what later explanations need of a step."""
        for event in view.checkpoints:
            kept = self.saves if event.op == "save" else self.loads
            if len(kept) < _MOST:
                kept.append(event)
        self.seeds += [e for e in view.generators if e.change == "seed" and len(self.seeds) < _MOST]
        if len(self.optimizers) < _MOST:
            self.optimizers += view.optimizers
        if len(self.marks) < _MOST:
            self.marks += view.marks
        self.ddp += [call for call in view.calls if call.api == DDP_INIT]


class Run:
    """One recorded run.

    Args:
        path: of its directory.
        label: how reports call it.

    Raises:
        TraceFormatError: it is not a run.
    """

    def __init__(self, path: Path | str, label: str = "") -> None:
        self.path = Path(path)
        self.label = label or self.path.name
        self.reader = TraceReader(path)

    @property
    def ranks(self) -> list[int]:
        """The ranks that left events."""
        return self.reader.ranks

    def views(self, rank: int) -> Iterator[StepView]:
        """The steps of one rank."""
        return step_views(self.reader.rank_events(rank, RECORDS))

    def process(self, rank: int) -> dict[str, Any]:
        """The facts of the process of a rank that trains."""
        for process in self.reader.processes:
            if process.rank == rank and not process.is_worker:
                return process.facts
        return {}


class Programs:
    """The source files of two runs, read when they are first needed.

    Args:
        runs: A and B.
        facts: of one rank of each, whose marks name the files.
    """

    def __init__(self, runs: tuple[Run, Run], facts: tuple[RankFacts, RankFacts]) -> None:
        self._changes: list[Change] | None = None
        self.loaders = [
            cache(partial(program_of, run.path, one.marks))
            for run, one in zip(runs, facts, strict=True)
        ]

    def changes(self) -> Sequence[Change]:
        """The lines of the user's code that differ."""
        if self._changes is None:
            self._changes = changes_between(*(load() for load in self.loaders))
        return self._changes
