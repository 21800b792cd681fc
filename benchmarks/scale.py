"""Cost of inference by the size of the trace, and compared with the other tool.

    python -m benchmarks.scale [--events N,N,...] [--programs NAME,NAME] [--peer PYTHON]
        [--keep FOLDER] [--json FILE]

Traces of growing length are generated (make_trace.py); CPU seconds count, start-up included. With
--peer each program is recorded by both tools, for as many steps, and learned from by both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import WORKLOADS
from benchmarks.inference import count_events, figures, generate, infer
from benchmarks.peer import Peer

EVENTS = (10_000, 100_000, 1_000_000, 10_000_000)
PROGRAMS: Mapping[str, int] = {"mlp_digits": 96, "cnn_mnist": 40, "gpt_char": 20}  # steps
_TIMEOUT_S = 3600


def grown(folder: Path, events: int) -> dict[str, Any]:
    """Cost of learning from a generated trace of so many events."""
    trace = folder / f"generated-{events}"
    if not trace.exists():
        generate(trace, events)
    done, count = infer([trace], folder / f"{events}.invariant.json", timeout_s=_TIMEOUT_S)
    cost = figures(done, count_events(trace)) | {"invariants": count}
    return cost | {"us_per_event": round(cost["cpu_s"] / cost["events"] * 1e6, 1)}


def beside(folder: Path, name: str, peer: Peer | None) -> dict[str, Any]:
    """Cost of learning from a program, with traincheck and with the other tool."""
    env = {"UP_STEPS": PROGRAMS[name]}
    trace = folder / name
    harness.collect(WORKLOADS / f"{name}.py", trace, env=env).expect()
    done, count = infer([trace], folder / f"{name}.invariant.json", timeout_s=_TIMEOUT_S)
    result: dict[str, Any] = {
        "ours": figures(done, count_events(trace)) | {"invariants": count, "steps": PROGRAMS[name]}
    }
    if peer is not None:
        other = folder / f"peer-{name}"
        peer.collect(name, other, env=env)
        result["peer"] = figures(peer.infer(other, folder / f"peer-{name}.json"))
        result["times"] = round(result["peer"]["cpu_s"] / result["ours"]["cpu_s"], 1)
    return result


def show(result: dict[str, Any]) -> str:
    """Two tables: growth, and both tools side by side."""
    header = ["events", "CPU s", "wall s", "microseconds/event", "peak MB", "invariants"]
    keys = ("events", "cpu_s", "wall_s", "us_per_event", "peak_mb", "invariants")
    text = harness.table(header, [[one[key] for key in keys] for one in result["grown"]])
    rows = [
        [
            name,
            one["ours"]["steps"],
            one["ours"]["events"],
            *(one["ours"][key] for key in ("cpu_s", "peak_mb")),
            *(one.get("peer", {}).get(key, "-") for key in ("cpu_s", "peak_mb")),
            one.get("times", "-"),
        ]
        for name, one in result["programs"].items()
    ]
    header = ["program", "steps", "events", "CPU s", "peak MB", "peer CPU s", "peer peak MB"]
    return f"{text}\n\n{harness.table([*header, 'times'], rows)}\n\nmachine: {result['machine']}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default=",".join(map(str, EVENTS)), help="sizes of traces")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="workloads; '' for none")
    parser.add_argument("--peer", type=Path, help="Python of the peer's virtual environment")
    parser.add_argument("--keep", type=Path, help="folder of traces, used again when there")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        peer = Peer(python=options.peer, folder=Path(scratch)) if options.peer else None
        sizes = [int(size) for size in options.events.split(",") if size]
        names = [name for name in options.programs.split(",") if name]
        result = {
            "machine": harness.describe_machine(),
            "grown": [grown(folder, size) for size in sizes],
            "programs": {name: beside(Path(scratch), name, peer) for name in names},
        }
    print(show(result))
    harness.write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
