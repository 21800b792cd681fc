"""Cost of learning and checking: CPU seconds, peak memory, events per second.

    python -m benchmarks.inference [--events N] [--peer PYTHON] [--json FILE]

Two traces: 20 steps of ``gpt_char.py``, and a generated one of a million events. Checking is
measured with 300 invariants, and with all rules beside them. Start-up counts in; on a busy machine
read events a CPU second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, WORKLOADS, Done
from benchmarks.peer import Peer

GPT_STEPS = 20
INVARIANTS = 300
_BLOCK = 1 << 20
TARGETS = {
    "infer gpt_char": "<= 5 s CPU, 300 MB",
    "infer generated": "<= 60 s, 1000 MB",
    "check generated": ">= 200,000 events/s",
    "--help": "< 0.3 s",
}


def figures(done: Done, events: int | None = None) -> dict[str, Any]:
    """The cost of one command."""
    cost: dict[str, Any] = {
        "cpu_s": round(done.cpu_s, 2),
        "wall_s": round(done.wall_s, 2),
        "peak_mb": round(done.peak_mb),
    }
    if events is not None:
        cost |= {"events": events, "events_per_s": round(events / done.wall_s)}
        cost |= {"events_per_cpu_s": round(events / done.cpu_s)}
    return cost


def count_events(trace: Path) -> int:
    """Lines of all event files."""
    # Block by block: a command's peak memory begins at that of the process that starts it.
    lines = 0
    for path in harness.event_files(trace):
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                lines += block.count(b"\n")
    return lines


def generate(out: Path, events: int) -> None:
    """Write a trace of about this many events, as a training run would."""
    script = ROOT / "benchmarks" / "make_trace.py"
    harness.run([sys.executable, script, "--events", str(events), "-o", out]).expect()


def with_count(learned: Path, out: Path, wanted: int) -> None:
    """Write ``wanted`` invariants: the learned ones, then copies that differ in their precondition.

    A copy has a different precondition that always holds, so that the answer to another invariant
    cannot be reused.
    """
    document = json.loads(learned.read_text(encoding="utf-8"))
    found = document["invariants"]
    many = []
    for number in range(wanted):
        again, index = divmod(number, len(found))
        invariant = found[index]
        many.append({**invariant, **(_own_condition(invariant, again) if again else {})})
    document["invariants"] = many
    out.write_text(json.dumps(document), encoding="utf-8")


def _own_condition(invariant: dict[str, Any], number: int) -> dict[str, Any]:
    clauses = invariant["precondition"].get("any", []) if invariant["precondition"] else []
    own = [
        [*clause, {"feature": feature, "op": "!=", "value": f"copy {number}"}]
        for clause in clauses or [[]]
        for feature in ("stage", "training", "grad_enabled", "ndim")
    ]
    return {"id": f"{invariant['id']}-{number}", "precondition": {"any": own}}


def infer(traces: Sequence[Path], out: Path, timeout_s: float = 900) -> tuple[Done, int]:
    """Learn, and how many invariants came of it."""
    done = harness.infer(traces, out, timeout_s=timeout_s)
    return done, len(json.loads(out.read_text(encoding="utf-8"))["invariants"])


def measure_ours(folder: Path, events: int) -> dict[str, Any]:
    """All figures of our commands."""
    gpt, generated = folder / "gpt", folder / "generated"
    env = {"UP_STEPS": GPT_STEPS}
    harness.collect(WORKLOADS / "gpt_char.py", gpt, env=env).expect()
    generate(generated, events)
    result: dict[str, Any] = {}
    for name, trace in (("gpt_char", gpt), ("generated", generated)):
        learned = folder / f"{name}.invariant.json"
        done, count = infer([trace], learned)
        result[f"infer {name}"] = figures(done, count_events(trace)) | {"invariants": count}
    for name, trace in (("gpt_char", gpt), ("generated", generated)):
        many = folder / f"{name}.many.json"
        with_count(folder / f"{name}.invariant.json", many, INVARIANTS)
        for rules, what in ((False, f"check {name}"), (True, f"check {name}, rules too")):
            argv = harness.check_argv(trace, [many], rules=rules)
            done = harness.run(argv, timeout_s=1800).expect(0, 1)
            result[what] = figures(done, count_events(trace)) | {"invariants": INVARIANTS}
    result["--help"] = figures(harness.run([harness.command("traincheck"), "--help"]).expect())
    return result


def measure_peer(peer: Peer, folder: Path) -> dict[str, Any]:
    """The other tool on 20 steps of the same program."""
    trace, learned = folder / "peer-gpt", folder / "peer.invariant.json"
    peer.collect("gpt_char", trace, env={"UP_STEPS": GPT_STEPS})
    inferred = peer.infer(trace, learned)
    checked = peer.check(trace, learned, folder / "peer-check")
    return {"infer gpt_char": figures(inferred), "check gpt_char": figures(checked)}


def show(result: dict[str, Any]) -> str:
    """Both tools' figures beside what was asked."""
    header = ["what", "events", "invariants", "CPU s", "wall s", "peak MB"]
    header += ["events/s", "events/CPU s", "asked"]
    rows = []
    for who, found in (("", result["ours"]), ("peer ", result.get("peer", {}))):
        for what, cost in found.items():
            known = [cost.get(key, "-") for key in ("events", "invariants")]
            known += [cost[key] for key in ("cpu_s", "wall_s", "peak_mb")]
            known += [cost.get(key, "-") for key in ("events_per_s", "events_per_cpu_s")]
            rows.append([who + what, *known, "-" if who else TARGETS.get(what, "-")])
    return harness.table(header, rows) + f"\n\nmachine: {result['machine']}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--events", type=int, default=1_000_000, help="size of the generated trace")
    parser.add_argument("--peer", type=Path, help="Python of the peer's virtual environment")
    options = parser.parse_args(argv)
    result: dict[str, Any] = {"machine": harness.describe_machine()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result["ours"] = measure_ours(folder, options.events)
        if options.peer:
            result["peer"] = measure_peer(Peer(python=options.peer, folder=folder), folder)
    print(show(result))
    harness.write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
