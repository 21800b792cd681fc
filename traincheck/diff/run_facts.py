"""A run as the comparison sees it beside its steps: facts, values, and what it continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from traincheck.diff.choices import Names
from traincheck.diff.difference import Resume
from traincheck.diff.sources import Change, changes_between, program_of
from traincheck.diff.steps import RECORDS, StepView, step_views
from traincheck.schema.events import CheckpointEvent, MarkEvent, OptimizerEvent, RngEvent
from traincheck.schema.files import open_regular
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
        last: the step before the current one.
    """

    loads: list[CheckpointEvent] = field(default_factory=list)
    saves: list[CheckpointEvent] = field(default_factory=list)
    seeds: list[RngEvent] = field(default_factory=list)
    optimizers: list[OptimizerEvent] = field(default_factory=list)
    marks: list[MarkEvent] = field(default_factory=list)
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


_CHUNK_BYTES = 1 << 23
_MOST_LINE_BYTES = 1 << 20
_MOST_HITS = 64


class Place(NamedTuple):
    """Where a value was recorded.

    Attributes:
        step: number of the step; None outside the steps of a process.
        kind: of the record.
        name: of the variable or loader.
        role: of the variable; "" for others.
        record: the whole record.
    """

    step: int | None
    kind: str
    name: str
    role: str
    record: dict[str, Any]


class Lookup:
    """Searches the event files of a run for a text, without decoding the other lines.

    Args:
        reader: of the run.
        rank: whose files are searched.
    """

    def __init__(self, reader: TraceReader, rank: int) -> None:
        self._paths: list[Path] = [
            path
            for process in reader.processes
            if process.rank == rank and not process.is_worker
            for path in process.files
        ]
        self._known: dict[bytes, list[Place]] = {}

    def of_value(self, fingerprint: str | None) -> list[Place]:
        """The states, loads and batches that have this fingerprint, in order."""
        return self._found(fingerprint.encode()) if fingerprint else []

    def of_batch(self, samples: Sequence[str], indices: Sequence[int]) -> list[Place]:
        """The batches with these rows, or else drawn by these indices."""
        if samples:
            text = '"samples":[' + ",".join(f'"{sample}"' for sample in samples[:8])
        elif indices:
            text = '"indices":[' + ",".join(map(str, indices[:16]))
        else:
            return []
        return [place for place in self._found(text.encode()) if place.kind == "batch"]

    def _found(self, needle: bytes) -> list[Place]:
        if needle not in self._known:
            self._known[needle] = [
                place for path in self._paths for line in _lines_with(path, needle)
                if (place := _place(line)) is not None
            ]  # fmt: skip
        return self._known[needle]


def _lines_with(path: Path, needle: bytes) -> Iterator[bytes]:
    """The lines of a file that hold a text, the first of them."""
    hits = 0
    rest = b""
    with open_regular(path) as file:
        while piece := file.read(_CHUNK_BYTES):
            text = rest + piece
            end = text.rfind(b"\n") + 1
            at = text.find(needle, 0, end)
            while at >= 0:
                start, stop = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
                yield text[start:stop]
                hits += 1
                if hits == _MOST_HITS:
                    return
                at = text.find(needle, stop, end)
            rest = text[end:] if len(text) - end <= _MOST_LINE_BYTES else b""


def _place(line: bytes) -> Place | None:
    try:
        record = msgspec.json.decode(line)
        kind = record["k"]
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return None
    name = record.get("name") or record.get("loader") or record.get("target") or ""
    default = "parameter" if kind == "state" else ""  # a field with its default is left out
    return Place(record.get("s"), kind, str(name), str(record.get("role", default)), record)


_MOST_LOOKED_UP = 8  # parameters


def find_resume(a: Run, b: Run, ranks: tuple[int, int], names: Names) -> Resume | None:
    """The step of A that B continues from; None if B does not load a state of A.

    B loads a state before its first step. Its parameters are those of A after some step, or its
    file is one that A wrote.
    """
    file = model = None
    for load in _first_loads(b, ranks[1]):
        if load.op == "load_state_dict" and load.values and model is None:
            model = load
        elif load.op == "load" and load.path and file is None:
            file = load
    if model is None or any(load.values == model.values for load in _first_loads(a, ranks[0])):
        return None  # both begin so
    by_values = _by_values(Lookup(a.reader, ranks[0]), model, names)
    path = None if file is None else file.path
    where = model.where or ""
    if by_values is not None:
        step, matching, of = by_values
        return (
            Resume(step=step, path=path, parameters=matching, of=of, where=where) if step else None
        )
    saved_in = [
        event.step
        for event in (a.reader.rank_events(ranks[0]) if path is not None else ())
        if isinstance(event, CheckpointEvent) and event.op == "save" and event.path == path
        if event.step is not None
    ]
    if not saved_in:
        return None
    of = min(len(model.values), _MOST_LOOKED_UP)
    return Resume(step=saved_in[-1] + 1, path=path, parameters=0, of=of, where=where)


def _first_loads(run: Run, rank: int) -> Iterator[CheckpointEvent]:
    """The loads of a run before its first step ends."""
    for view in run.views(rank):
        yield from view.checkpoints
        return


def _by_values(lookup: Lookup, load: CheckpointEvent, names: Names) -> tuple[int, int, int] | None:
    """The step that begins with these parameters, how many are found, and of how many."""
    begins: Counter[int] = Counter()
    looked_up = 0
    for given, fingerprint in list(load.values.items())[:_MOST_LOOKED_UP]:
        name = names.of_b(given)
        if name is None or not isinstance(fingerprint, str):
            continue
        looked_up += 1
        # A step begins with the value that was recorded in the one before it, or at the start.
        begins.update(
            {
                0 if place.record.get("g") == "init" else place.step + 1
                for place in lookup.of_value(fingerprint)
                if (place.kind, place.role, place.name) == ("state", "parameter", name)
                and isinstance(place.step, int)
            }
        )
    if not begins:
        return None
    # A frozen parameter is found once, at the start, and goes with any step.
    best = max(begins, key=lambda step: (step > 0, begins[step], -step))
    matching = begins[best] + (begins[0] if best else 0)
    return best, matching, looked_up
