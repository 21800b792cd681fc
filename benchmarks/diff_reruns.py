"""False differences of `traincheck diff` on identical reruns of the same program.

    python -m benchmarks.diff_reruns [--runs 20] [--only WORD] [--jobs 2] [--json FILE]

Five kinds of program (a loader in the process and with two workers, bf16 autocast, two gloo ranks,
gradient accumulation) are recorded in the default view and in the view "diff". Each run is compared
with the first of its program and view; the ranks of each run with rank 0. The exit status is 1 if
any comparison has a difference, or has nothing that could be compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import traincheck
from benchmarks import harness
from traincheck.diff.difference import Difference

PROGRAM = harness.WORKLOADS / "rerun.py"
KINDS = ("in_process", "workers", "autocast", "ranks", "accumulation")
VIEWS = {"default": (), "diff": ("--view", "diff")}
RUNS = 20
HEADER = ("program", "view", "compared", "runs", "differences", "compared values", "not comparable")
_TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(slots=True)
class Line:
    """The comparisons of one program and view.

    Attributes:
        what: "reruns", or "ranks" of each run.
        runs: how many were recorded.
        values, unknown: how many values were compared, and how many could not be, in all.
        broken: the first differences, as sentences.
        notes: what limits the comparisons.
    """

    kind: str
    view: str
    what: str
    runs: int
    values: int = 0
    unknown: int = 0
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, found: Difference) -> None:
        """Take in one comparison."""
        self.values += sum(found.compared.values())
        self.unknown += sum(found.unknown.values())
        self.notes += [note for note in found.notes if note not in self.notes]
        if not found.same:
            self.broken.append(_said(found))

    def cells(self) -> tuple[str | int, ...]:
        """The line of the table."""
        counts = (self.runs, len(self.broken), self.values, self.unknown)
        return (self.kind, self.view, self.what, *counts)


def _said(found: Difference) -> str:
    first = found.first
    if first is None:
        return f"{found.b}: nothing could be compared"
    return f"{found.b}: step {first.step}, rank {first.rank}, {first.phase}: {first.message}"


def record(kind: str, view: str, folder: Path) -> Path:
    """Record a run; the program has a folder for its checkpoint."""
    place = folder / "work"
    place.mkdir(parents=True)
    python = (sys.executable, *(_TWO_RANKS if kind == "ranks" else ()))
    words = (*python, PROGRAM, kind)
    more = ["--quiet", *VIEWS[view]]
    out = folder / "run"
    harness.collect(words, out, more=more, cwd=place).expect()
    return out


def compare(kind: str, view: str, runs: Sequence[Path]) -> Iterator[Line]:
    """Compare the runs with the first of them, and the ranks of each with rank 0."""
    reruns = Line(kind, view, "reruns", len(runs))
    for run in runs[1:]:
        reruns.add(traincheck.diff(runs[0], run))
    yield reruns
    if kind == "ranks":
        ranks = Line(kind, view, "ranks", len(runs))
        for run in runs:
            ranks.add(traincheck.diff(run, ranks=True))
        yield ranks


def measure(
    folder: Path, runs: int, *, only: str = "", jobs: int = 1, views: Sequence[str] = tuple(VIEWS)
) -> Iterator[Line]:
    """Record and compare everything, in ``folder``; a line for each program and view."""
    chosen = [(kind, view) for kind in KINDS if only in kind for view in views]
    pool = ThreadPoolExecutor(jobs)
    try:
        made = {
            (kind, view): [
                pool.submit(record, kind, view, folder / f"{kind}-{view}-{number}")
                for number in range(runs)
            ]
            for kind, view in chosen
        }
        for (kind, view), recordings in made.items():
            yield from compare(kind, view, [one.result() for one in recordings])
    finally:
        pool.shutdown(cancel_futures=True)


def show(found: Sequence[Line]) -> None:
    """Print the table, then the differences and the notes."""
    print(harness.table(HEADER, (line.cells() for line in found)))
    for line in found:
        for text in [*line.broken, *(f"note: {note}" for note in line.notes)]:
            print(f"{line.kind} ({line.view}, {line.what}): {text}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diff_reruns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="of each program and view")
    parser.add_argument("--only", default="", help="only kinds whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="recordings at the same time")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args(argv)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for line in measure(Path(folder), options.runs, only=options.only, jobs=options.jobs):
            found.append(line)
            print(*line.cells(), file=sys.stderr)
    show(found)
    rows = [dict(zip(HEADER, line.cells(), strict=True)) for line in found]
    harness.write_json(options.json, {"machine": harness.describe_machine(), "lines": rows})
    return int(any(line.broken for line in found))


if __name__ == "__main__":
    sys.exit(main())
