"""CPU seconds of commands that read: ``--version``, ``--help``, and work on a small trace.

    python -m benchmarks.command_startup [--rounds N] [--json FILE]

The trace has 12 steps of a small model, so that loading Python modules is most of the work. In a
round the commands run one after the other on one core. ``python -X importtime -m traincheck ...``
shows which modules take the time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import command, spread
from tests.builders import healthy_run
from traincheck.store.writer import TraceWriter

STEPS = 12
# What a command may take, in CPU seconds.
MOST = {"--version": 0.35, "check -t run": 1.2}
LINES = (
    "--version",
    "--help",
    "infer -t run -o learned.json --force",
    "check -t run",
    "check -t run -i learned.json",
    "facts run",
    "diff run run",
    "report run -o page.html",
)


def write_trace(folder: Path) -> None:
    """A healthy run of a few steps."""
    with TraceWriter(folder) as writer:
        for event in healthy_run(STEPS):
            writer.emit(event)


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """Run all commands, in rounds. The first round, which may compile modules, does not count."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    write_trace(folder / "run")
    found: dict[str, list[float]] = {line: [] for line in LINES}
    for number in range(rounds + 1):
        for line in LINES:
            done = harness.run(
                [command("traincheck"), *line.split()],
                cwd=folder,
                env={"PYTHONDONTWRITEBYTECODE": ""},
            ).expect()
            if number:
                found[line].append(done.cpu_s)
    return {
        "machine": harness.describe_machine(),
        "rounds": rounds,
        "cpu_s": {line: spread(values) for line, values in found.items()},
    }


def show(result: dict[str, Any]) -> str:
    """A row for each command."""
    rows = [
        [
            f"traincheck {line}",
            *(f"{figures[name]:.2f}" for name in ("median", "min", "max")),
            str(MOST.get(line, "")),
        ]
        for line, figures in result["cpu_s"].items()
    ]
    header = ["CPU seconds", "median", "min", "max", "may take"]
    return f"{harness.table(header, rows)}\n\nmachine: {result['machine']}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options.rounds, Path(scratch))
    print(show(result))
    harness.write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
