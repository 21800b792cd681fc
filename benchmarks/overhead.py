"""What recording costs: CPU time per step against the plain program, start-up, a call, trace size.

    python -m benchmarks.overhead [--quick] [--rounds N] [--only a,c] [--peer PYTHON] [--json FILE]

Each round runs every variant of a program once, in turn, so that a machine that slows down slows
all of them. A ratio is taken within its round; the table shows the median of the rounds. ``again``
is the plain program a second time: how far it is from 1 is the noise. ``--peer`` takes the Python
of a virtual environment that holds traincheck==0.2.0 and measures it in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import WORKLOADS, spread
from benchmarks.peer import Peer

SETTLE = 3  # steps at the start do not count: allocators warm up, lazy imports happen
EVERY = 10
PEER_STEPS = 8
STARTUP_TARGET_S = 1.0
CALL_TARGET_US = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A measured program; enough steps for a steady median. Targets are ratios."""

    letter: str
    name: str
    steps: int
    default_target: float
    selective_target: float

    @property
    def script(self) -> Path:
        """The file to run."""
        return WORKLOADS / f"{self.name}.py"


PROGRAMS = (
    Program(letter="a", name="mlp_digits", steps=200, default_target=2.0, selective_target=1.3),
    Program(letter="b", name="cnn_mnist", steps=26, default_target=1.15, selective_target=1.03),
    Program(letter="c", name="gpt_char", steps=14, default_target=1.15, selective_target=1.03),
    Program(letter="d", name="resnet18", steps=14, default_target=1.15, selective_target=1.03),
)


@dataclass(slots=True)
class Bench:
    """One program's runs. ratios: variant -> one figure a round; the plain program is 1."""

    program: Program
    folder: Path
    peer: Peer | None
    ratios: dict[str, list[float]] = field(default_factory=dict)
    plain_ms: list[float] = field(default_factory=list)
    runs: int = 0

    @property
    def invariants(self) -> Path:
        """What our tool learned from this very program."""
        return self.folder / "own.invariant.json"

    @property
    def peer_invariants(self) -> Path:
        """What the other tool learned from this very program."""
        return self.folder / "peer.invariant.json"

    def prepare(self, peer_infers: bool) -> None:
        """Learn the program's own invariants."""
        trace = self.folder / "reference"
        harness.collect(self.program.script, trace, env={"UP_STEPS": 30}).expect()
        harness.infer([trace], self.invariants)
        if self.peer is not None and peer_infers:
            recorded = self.folder / "peer-reference"
            self.peer.collect(self.program.name, recorded, env={"UP_STEPS": 5})
            self.peer.infer(recorded, self.peer_invariants)

    def round(self, number: int) -> None:
        """Run each variant once, beginning with another one each time."""
        variants: list[Callable[[], dict[str, float]]] = [
            lambda: {"again": self._plain()},
            lambda: {"default": self._ours("default")},
            lambda: {"selective": self._ours("selective", invariants=self.invariants)},
            lambda: {"rules": self._ours("rules", rules=True)},
            self._sampled,
        ]
        if self.peer is not None:
            variants.append(lambda: {"peer": self._peer(None)})
            if self.peer_invariants.exists():
                variants.append(lambda: {"peer selective": self._peer(self.peer_invariants)})
        turn = number % len(variants)
        base = self._plain()
        self.plain_ms.append(base * 1e3)
        for variant in variants[turn:] + variants[:turn]:
            for name, seconds in variant().items():
                self.ratios.setdefault(name, []).append(seconds / base)

    def _plain(self) -> float:
        env, times = self._env(self.program.steps)
        harness.plain(self.program.script, env=env).expect()
        return statistics.median(_cpu(times)[SETTLE:])

    def _ours(self, view: str, invariants: Path | None = None, rules: bool = False) -> float:
        env, times = self._env(self.program.steps)
        harness.collect(
            self.program.script, self._out(view), env=env, invariants=invariants, rules=rules
        ).expect()
        return statistics.median(_cpu(times)[SETTLE:])

    def _sampled(self) -> dict[str, float]:
        env, times = self._env(self.program.steps)
        out = self._out("every")
        harness.collect(self.program.script, out, env=env, every=EVERY).expect()
        cpu = _cpu(times)
        kept = {
            record["s"]
            for record in harness.records(out)
            if record["k"] == "step" and record.get("recorded", True)
        }
        # A step's end may be seen after the program's own timer ticked: the step after a recorded
        # one is not a clean sample of a skipped one.
        skipped = [
            seconds
            for step, seconds in enumerate(cpu)
            if step >= SETTLE and not {step, step - 1} & kept
        ]
        return {
            "every mean": statistics.mean(cpu[SETTLE:]),
            "every skipped": statistics.median(skipped),
        }

    def _peer(self, invariants: Path | None) -> float:
        assert self.peer is not None
        env, times = self._env(PEER_STEPS)
        self.peer.collect(self.program.name, self._out("peer"), env=env, invariants=invariants)
        return statistics.median(_cpu(times)[SETTLE:])

    def _env(self, steps: int) -> tuple[dict[str, str], Path]:
        self.runs += 1
        times = self.folder / f"times-{self.runs}.json"
        return {"UP_STEPS": str(steps), "UP_TIMES": str(times), "UP_EVAL": "0"}, times

    def _out(self, view: str) -> Path:
        return self.folder / f"{view}-{self.runs}"

    def sizes(self) -> dict[str, dict[str, float]]:
        """Events and bytes a step in the last trace of each view."""
        found = {}
        for view in ("default", "selective", "rules"):
            traces = sorted(self.folder.glob(f"{view}-*"), key=lambda p: int(p.name.split("-")[1]))
            if traces:
                found[view] = trace_size(traces[-1])
        return found


def _cpu(times: Path) -> list[float]:
    seconds: list[float] = json.loads(times.read_text(encoding="utf-8"))["cpu"]
    return seconds


def trace_size(trace: Path) -> dict[str, float]:
    """Events and bytes a step, over the settled steps."""
    events = size = 0
    steps: set[int] = set()
    for path in harness.event_files(trace):
        with path.open("rb") as lines:
            for line in lines:
                step = json.loads(line)["s"]
                if step is not None and step >= SETTLE:
                    events += 1
                    size += len(line)
                    steps.add(step)
    count = max(len(steps), 1)
    return {"events": round(events / count, 1), "bytes": round(size / count)}


def measure_startup(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds that recording adds to a program that only imports torch, launcher included."""
    script = WORKLOADS / "nothing.py"
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(rounds):
        bare = harness.plain(script).expect()
        traced = harness.collect(script, folder / f"startup-{number}").expect()
        wall.append(traced.wall_s - bare.wall_s)
        cpu.append(traced.cpu_s - bare.cpu_s)
    return {"wall_s": spread(wall), "cpu_s": spread(cpu), "target_s": STARTUP_TARGET_S}


def measure_call(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds that recording adds to one call of a cheap function, in the calling thread."""
    script = WORKLOADS / "calls.py"
    added: list[float] = []
    share = 0.0
    for number in range(rounds):
        times = folder / f"calls-{number}.json"
        out = folder / f"calls-{number}"
        env = {"UP_TIMES": str(times)}
        harness.plain(script, env=env).expect()
        bare = json.loads(times.read_text(encoding="utf-8"))
        harness.collect(script, out, env=env).expect()
        traced = json.loads(times.read_text(encoding="utf-8"))
        added.append((statistics.median(traced["ns"]) - statistics.median(bare["ns"])) / 1e3)
        recorded = sum(1 for r in harness.records(out) if r.get("api", "").endswith(".relu"))
        share = recorded / traced["calls"]
    return {"us": spread(added), "recorded_share": round(share, 3), "target_us": CALL_TARGET_US}


COLUMNS = ("again", "default", "selective", "rules", "every mean", "every skipped")
PEER_COLUMNS = ("peer", "peer selective")


def show(result: dict[str, Any]) -> str:
    """The result as tables: ratios as median (min-max), then what was asked."""
    has_peer = any("peer" in p["ratios"] for p in result["programs"])
    columns = (*COLUMNS, *(PEER_COLUMNS if has_peer else ()))
    header = ["program", "plain ms", *columns, "asked default", "asked selective"]
    rows = []
    for p in result["programs"]:
        cells = [_cell(p["ratios"].get(column)) for column in columns]
        targets = [p["targets"]["default"], p["targets"]["selective"]]
        rows.append([p["program"], f"{p['plain_ms']['median']:.2f}", *cells, *targets])
    sizes = [
        [p["program"], view, size["events"], size["bytes"]]
        for p in result["programs"]
        for view, size in p["per_step"].items()
    ]
    startup, call = result["startup"], result["call"]
    return "\n".join(
        [
            harness.table(header, rows),
            "",
            harness.table(["program", "view", "events/step", "bytes/step"], sizes),
            "",
            f"start-up added: wall {_cell(startup['wall_s'])} s, CPU {_cell(startup['cpu_s'])} s; "
            f"asked <= {startup['target_s']} s",
            f"one recorded call: {_cell(call['us'])} us ({call['recorded_share']:.0%} recorded); "
            f"asked <= {call['target_us']} us",
            f"machine: {result['machine']}",
        ]
    )


def _cell(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['median']:.2f} ({figures['min']:.2f}-{figures['max']:.2f})"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run everything that was asked for, in rounds over all programs."""
    before = harness.describe_machine()
    rounds = 2 if options.quick else options.rounds
    peer = Peer(python=options.peer, folder=folder) if options.peer else None
    benches = []
    for program in PROGRAMS:
        if not options.only or program.letter in options.only.split(","):
            place = folder / program.name
            place.mkdir()
            benches.append(Bench(program=program, folder=place, peer=peer))
            benches[-1].prepare(peer_infers=not options.quick)
    for number in range(rounds):
        for bench in benches:
            print(f"round {number + 1} of {rounds}: {bench.program.name}", file=sys.stderr)
            bench.round(number)
    return {
        "machine": {**before, "load_after": harness.describe_machine()["load"]},
        "rounds": rounds,
        "startup": measure_startup(folder, rounds),
        "call": measure_call(folder, rounds),
        "programs": [
            {
                "program": f"({bench.program.letter}) {bench.program.name}",
                "plain_ms": spread(bench.plain_ms),
                "ratios": {name: spread(found) for name, found in bench.ratios.items()},
                "per_step": bench.sizes(),
                "targets": {
                    "default": bench.program.default_target,
                    "selective": bench.program.selective_target,
                },
            }
            for bench in benches
        ],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds, no inference by the peer")
    parser.add_argument("--only", default="", help="letters of programs, e.g. a,c")
    parser.add_argument("--peer", type=Path, help="Python of the peer's virtual environment")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(options, Path(scratch))
    print(show(result))
    harness.write_json(options.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
