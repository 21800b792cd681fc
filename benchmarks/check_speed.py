"""Where the time of checking goes: reading, routing, rules, invariants; in microseconds an event.

    python -m benchmarks.check_speed [--events N] [--invariants N] [--json FILE]

On a generated trace, by invariants learned from it, repeated under new ids up to the number asked
for. "in memory" lines feed events that were read before, so they show the engine alone. CPU time of
this process, best of three.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks import harness, make_trace
from traincheck.check.engine import Engine, watch
from traincheck.relations.registry import RELATIONS
from traincheck.rules.table import RULES
from traincheck.schema.claims import Invariant
from traincheck.schema.invariant_file import read_invariants
from traincheck.schema.protocols import Rule
from traincheck.store.reader import TraceReader

TARGET = 200_000  # events/s with reading, by 300 invariants
_REPEATS = 3


def cost(work: Callable[[], int]) -> dict[str, float]:
    """Events, and the least CPU time it took to go through them."""
    seconds = []
    for _ in range(_REPEATS):
        gc.collect()
        began = time.process_time()
        events = work()
        seconds.append(time.process_time() - began)
    least = min(seconds)
    return {
        "events": events,
        "us_per_event": round(least / events * 1e6, 2),
        "events_per_s": round(events / least),
    }


def copies(invariants: Sequence[Invariant], count: int) -> list[Invariant]:
    """``count`` invariants: those given, again and again under new ids."""
    return [
        replace(invariant, id=f"{invariant.id}-{number}")
        for number, invariant in enumerate(islice(cycle(invariants), count))
    ]


def measure(trace: Path, learned: Sequence[Invariant], count: int) -> dict[str, Any]:
    """All lines of the table."""
    many = copies(learned, count)
    kept = list(TraceReader(trace).events())

    def read() -> int:
        return sum(1 for _ in TraceReader(trace).events())

    def check(invariants: Sequence[Invariant], rules: Sequence[Rule]) -> int:
        engine = Engine(invariants, rules, RELATIONS)
        watch(engine, TraceReader(trace).events())
        report = engine.finish()
        alarms = [f.title for f in report.findings if f.severity != "info"]
        assert not alarms, f"a healthy run must have none: {alarms}"
        return report.events

    def feed(invariants: Sequence[Invariant], rules: Sequence[Rule]) -> int:
        engine = Engine(invariants, rules, RELATIONS)
        watch(engine, kept)
        return engine.finish().events

    lines: dict[str, Callable[[], int]] = {
        "read": read,
        "check: rules": lambda: check((), RULES),
        f"check: {len(learned)} invariants": lambda: check(learned, ()),
        f"check: {count} invariants": lambda: check(many, ()),
        f"check: {count} invariants, rules": lambda: check(many, RULES),
        "in memory: nothing wanted": lambda: feed((), ()),
        "in memory: rules": lambda: feed((), RULES),
        f"in memory: {count} invariants": lambda: feed(many, ()),
        f"in memory: {count} invariants, rules": lambda: feed(many, RULES),
    }
    return {name: cost(work) for name, work in lines.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--invariants", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        trace, learned = Path(scratch) / "trace", Path(scratch) / "invariant.json"
        make_trace.write(trace, options.events)
        harness.infer([trace], learned)
        figures = measure(trace, read_invariants(learned), options.invariants)
    rows = [(name, f["us_per_event"], f"{f['events_per_s']:,}") for name, f in figures.items()]
    print(harness.table(("", "us/event", "events/s"), rows))
    print(f"target: {TARGET:,} events/s by {options.invariants} invariants, with reading")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": harness.describe_machine(), "figures": figures}
        options.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
