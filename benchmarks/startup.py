"""CPU seconds that recording adds to the start of a large model: making it, and its first steps.

    python -m benchmarks.startup [--against CHECKOUT] [--rounds N] [--rules] [--json FILE]

Two programs: 30,000 modules, and 5,000 parameters. In a round the plain program and each version of
traincheck run one after the other on one core. ``--against`` names another version, as for
benchmarks.overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.checkout import Checkout, checkout_at
from benchmarks.harness import WORKLOADS, spread

KINDS = ("modules", "parameters")
STEPS = 2
_SCRIPT = WORKLOADS / "large_model.py"


def seconds(folder: Path, kind: str, tool: Checkout | None, *, rules: bool) -> dict[str, float]:
    """CPU seconds of the parts of one run. tool: what records it, if anything does."""
    times = folder / "times.json"
    env = {"UP_KIND": kind, "UP_STEPS": STEPS, "UP_TIMES": str(times)}
    if tool is None:
        harness.plain(_SCRIPT, env=env).expect()
    else:
        env |= tool.env
        with tempfile.TemporaryDirectory(dir=folder) as out:
            harness.collect(
                _SCRIPT, Path(out) / "run", env=env, python=tool.python, rules=rules
            ).expect()
    found = json.loads(times.read_text(encoding="utf-8"))
    parts = {"init": found["init"], "first step": found["cpu"][0], "second step": found["cpu"][1]}
    return {**parts, "all": sum(parts.values())}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all versions of both programs, in rounds."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    tools: dict[str, Checkout | None] = {"plain": None}
    if options.against:
        tools["before"] = checkout_at(options.against, folder / "against")
    tools["recorded"] = Checkout()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for _ in range(options.rounds):
        for kind in KINDS:
            for name, tool in tools.items():
                for part, value in seconds(folder, kind, tool, rules=options.rules).items():
                    of_kind = found.setdefault(kind, {}).setdefault(name, {})
                    of_kind.setdefault(part, []).append(value)
    return {
        "machine": harness.describe_machine(),
        "rounds": options.rounds,
        "programs": {
            kind: {
                name: {part: spread(values) for part, values in parts.items()}
                for name, parts in of_kind.items()
            }
            for kind, of_kind in found.items()
        },
        "added": {kind: _added(of_kind) for kind, of_kind in found.items()},
    }


def _added(of_kind: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Median CPU seconds of each part above those of the plain program."""
    plain = of_kind["plain"]
    return {
        name: {
            part: round(statistics.median(values) - statistics.median(plain[part]), 3)
            for part, values in parts.items()
        }
        for name, parts in of_kind.items()
        if name != "plain"
    }


def show(result: dict[str, Any]) -> str:
    """A row for each program and version."""
    rows = [
        [kind, name, *(f"{figures['median']:.2f}" for figures in parts.values())]
        for kind, versions in result["programs"].items()
        for name, parts in versions.items()
    ]
    added = [
        [kind, f"{name} adds", *(f"{value:.2f}" for value in parts.values())]
        for kind, versions in result["added"].items()
        for name, parts in versions.items()
    ]
    header = ["CPU seconds", "version", "init", "first step", "second step", "all"]
    return f"{harness.table(header, [*rows, *added])}\n\nmachine: {result['machine']}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rules", action="store_true", help="record what the rules need")
    parser.add_argument("--against", type=Path, help="another version: a checkout, or its Python")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options, Path(scratch))
    print(show(result))
    harness.write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
