"""Cost of recording: CPU time per step against the plain program, start-up, call, trace size.

    python -m benchmarks.overhead [--quick] [--rounds N] [--only a,c] [--peer PYTHON] [--json FILE]
    python -m benchmarks.overhead --against CHECKOUT [--rounds N] [--only a,c] [--json FILE]
    python -m benchmarks.overhead --view diff [--rounds N] [--only a,c] [--json FILE]

In a round all variants of a program are started together, on one core, and take turns: each runs a
few steps, then the next one. So a short slowdown of the machine affects all of them. Each lap gives
a ratio, a round the median of its laps, the table the median of the rounds. ``again`` is the plain
program a second time: how far it is from 1 is the noise. ``--peer`` takes the Python of a virtual
environment that holds traincheck==0.2.0 and measures it in each round, by
itself: its steps are too long to take turns.

``--against`` names another version of traincheck: a checkout, or the Python of the virtual
environment that holds it. Both versions take turns in one ring. The table shows each kind of
recording before and after; the exit status is 1 when the median ratio of one of them rose by more
than its program allows. Each version learns its own invariants for selective recording.

``--view`` measures a view alone: with outputs of models, with outputs of all modules, and with
sketches in every 10th step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.checkout import Checkout, checkout_at
from benchmarks.harness import WORKLOADS, Done, spread
from benchmarks.peer import Peer
from traincheck.collect.launch.settings import VIEWS

SETTLE = 3  # steps at the start do not count: allocators warm up, lazy imports happen
EVERY = 10
HANG_S = 600.0
# For glibc, in all variants: keep freed memory. Otherwise the addresses of a process decide how
# often the kernel maps the same memory again: up to a tenth of a step of (b).
KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
PEER_STEPS = 8
STARTUP_TARGET_S = 1.0
CALL_TARGET_US = 3.0


Env = dict[str, str]
Times = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A measured program; enough steps for a steady median. Targets are ratios.

    turn: steps that a variant runs before the next one does. cold: those of them that do not count,
    as the caches hold what the others used.
    """

    letter: str
    name: str
    steps: int
    turn: int
    cold: int
    default_target: float
    selective_target: float
    may_rise: float  # from one version to the next

    @property
    def script(self) -> Path:
        """The file to run."""
        return WORKLOADS / f"{self.name}.py"


_LARGE: Any = {
    "turn": 4,
    "cold": 1,
    "default_target": 1.15,
    "selective_target": 1.03,
    "may_rise": 0.02,
}
PROGRAMS = (
    Program(
        letter="a",
        name="mlp_digits",
        steps=650,
        turn=13,  # not a multiple of EVERY, nor of the steps that an epoch has
        cold=3,
        default_target=2.0,
        selective_target=1.3,
        may_rise=0.1,
    ),
    Program(letter="b", name="cnn_mnist", steps=64, **_LARGE),
    Program(letter="c", name="gpt_char", steps=24, **_LARGE),
    Program(letter="d", name="resnet18", steps=24, **_LARGE),
)


_BEFORE = "before "  # begins the names of variants of the earlier version


@dataclass(slots=True)
class Bench:
    """One program's runs. ratios: variant -> one figure a round; the plain program is 1.

    versions: what the names of a version's variants begin with -> the version.
    view: that is measured, in place of the usual kinds of recording.
    """

    program: Program
    folder: Path
    peer: Peer | None
    versions: Mapping[str, Checkout] = field(default_factory=lambda: {"": Checkout()})
    ratios: dict[str, list[float]] = field(default_factory=dict)
    plain_ms: list[float] = field(default_factory=list)
    runs: int = 0
    view: str = ""

    def invariants(self, version: str) -> Path:
        """The invariants that a version learned from the same program."""
        return self.folder / f"own-{version.strip()}.invariant.json"

    @property
    def peer_invariants(self) -> Path:
        """The invariants that the other tool learned from the same program."""
        return self.folder / "peer.invariant.json"

    def prepare(self, peer_infers: bool) -> None:
        """Learn the program's own invariants."""
        for version, tool in self.versions.items():
            trace = self.folder / f"reference-{version.strip()}"
            env = {"UP_STEPS": 30, **tool.env}
            harness.collect(self.program.script, trace, env=env, python=tool.python).expect()
            out = self.invariants(version)
            harness.infer([trace], out, env=tool.env, python=tool.python)
        if self.peer is not None and peer_infers:
            recorded = self.folder / "peer-reference"
            self.peer.collect(self.program.name, recorded, env={"UP_STEPS": 5})
            self.peer.infer(recorded, self.peer_invariants)

    def round(self) -> None:
        """Run each variant once, in turns; then the other tool."""
        plain = {name: self._plain for name in ("plain", "again")}
        times = self._take_turns({**plain, **self._recorded()})
        base = times.pop("plain")
        self.plain_ms.append(statistics.median(base[SETTLE:]) * 1e3)
        for name, seconds in times.items():
            for column, ratio in self._compare(name, seconds, base).items():
                self.ratios.setdefault(column, []).append(ratio)
        if self.peer is not None:
            self._add_peer("peer", None)
            if self.peer_invariants.exists():
                self._add_peer("peer selective", self.peer_invariants)

    def _recorded(self) -> dict[str, Callable[[Env, Path], Done]]:
        """Each kind of recording by each version: versions side by side, in changing order."""
        versions = list(self.versions)
        if self.runs % 2:
            versions.reverse()
        kinds: dict[str, Callable[[str], dict[str, Any]]] = {
            "default": lambda _: {},
            "selective": lambda version: {"invariants": self.invariants(version)},
            "rules": lambda _: {"rules": True},
            "every": lambda _: {"every": EVERY},
        }
        if self.view:
            view = ("--view", self.view)
            kinds = {
                "view": lambda _: {"more": view},
                "view all": lambda _: {"more": (*view, "--outputs", "all")},
                "view every": lambda _: {"more": (*view, "--sketch"), "every": EVERY},
            }
        return {
            version + kind: partial(self._ours, tool=self.versions[version], **options(version))
            for kind, options in kinds.items()
            for version in versions
        }

    def _take_turns(self, variants: Mapping[str, Callable[[Env, Path], Done]]) -> Times:
        """CPU seconds of each step of each variant, in rings of named pipes."""
        self.runs += 1
        pipes = [self.folder / f"turn-{self.runs}-{number}" for number in range(len(variants))]
        for pipe in pipes:
            os.mkfifo(pipe)
        first = os.open(pipes[0], os.O_RDWR)
        with ThreadPoolExecutor(len(variants)) as pool:
            jobs = []
            for place, (name, variant) in enumerate(variants.items()):
                turns = f"{pipes[place]}:{pipes[(place + 1) % len(pipes)]}:{self.program.turn}"
                env = {**self._env(self.program.steps, name), "UP_TURNS": turns}
                jobs.append(pool.submit(variant, env, self._out(name)))
            os.write(first, b".")
            for job in jobs:
                job.result()
        os.close(first)
        return {name: self._cpu(name) for name in variants}

    def _plain(self, env: Env, _out: Path) -> Done:
        return harness.plain(self.program.script, env=env, timeout_s=HANG_S).expect()

    def _ours(self, env: Env, out: Path, *, tool: Checkout, **options: Any) -> Done:
        script = self.program.script
        options = {"env": {**env, **tool.env}, "python": tool.python, **options}
        return harness.collect(script, out, timeout_s=HANG_S, **options).expect()

    def _compare(self, name: str, cpu: list[float], base: list[float]) -> dict[str, float]:
        """Ratios of one variant to the plain program, lap by lap."""
        version, is_every, _ = name.partition("every")
        if not is_every:
            return {name: self._ratio(cpu, base)}
        kept = {
            record["s"]
            for record in harness.records(self._out(name))
            if record["k"] == "step" and record.get("recorded", True)
        }
        # A step's end may be seen after the program's own timer ticked: the step after a recorded
        # one is not a clean sample of a skipped one.
        skipped = [step for step in range(len(cpu)) if not {step, step - 1} & kept]
        return {
            f"{version}every mean": sum(cpu[SETTLE:]) / sum(base[SETTLE:]),
            f"{version}every skipped": self._ratio(cpu, base, among=frozenset(skipped)),
        }

    def _ratio(
        self, cpu: list[float], base: list[float], among: frozenset[int] | None = None
    ) -> float:
        """Median over the laps of the ratio of the median steps."""
        turn, cold = self.program.turn, self.program.cold
        laps = []
        for begin in range(0, len(base), turn):
            steps = [s for s in range(begin + cold, begin + turn) if SETTLE <= s < len(base)]
            counted = [s for s in steps if among is None or s in among]
            if counted:
                plain = statistics.median(base[s] for s in steps)
                laps.append(statistics.median(cpu[s] for s in counted) / plain)
        return statistics.median(laps)

    def _add_peer(self, name: str, invariants: Path | None) -> None:
        assert self.peer is not None
        env = self._env(PEER_STEPS, name)
        self.peer.collect(self.program.name, self._out(name), env=env, invariants=invariants)
        ratio = statistics.median(self._cpu(name)[SETTLE:]) * 1e3 / self.plain_ms[-1]
        self.ratios.setdefault(name, []).append(ratio)

    def _env(self, steps: int, name: str) -> dict[str, str]:
        times = str(self._times(name))
        return {"UP_STEPS": str(steps), "UP_TIMES": times, "UP_EVAL": "0", **KEEPS_MEMORY}

    def _times(self, name: str) -> Path:
        return self.folder / f"times-{self.runs}-{name.replace(' ', '-')}.json"

    def _cpu(self, name: str) -> list[float]:
        seconds: list[float] = json.loads(self._times(name).read_text(encoding="utf-8"))["cpu"]
        return seconds

    def _out(self, view: str) -> Path:
        return self.folder / f"{view.replace(' ', '-')}-{self.runs}"

    def sizes(self) -> dict[str, dict[str, float]]:
        """Events and bytes a step in the last trace of each view."""
        found = {}
        for view in ("default", "selective", "rules"):
            traces = sorted(self.folder.glob(f"{view}-*"), key=lambda p: int(p.name.split("-")[1]))
            if traces:
                found[view] = trace_size(traces[-1])
        return found


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
    alone: list[float] = []
    share = 0.0
    for number in range(rounds):
        times = folder / f"calls-{number}.json"
        out = folder / f"calls-{number}"
        env = {"UP_TIMES": str(times)}
        harness.plain(script, env=env).expect()
        bare = json.loads(times.read_text(encoding="utf-8"))
        harness.collect(script, out, env=env).expect()
        traced = json.loads(times.read_text(encoding="utf-8"))
        alone.append(statistics.median(bare["ns"]) / 1e3)
        added.append(statistics.median(traced["ns"]) / 1e3 - alone[-1])
        recorded = sum(1 for r in harness.records(out) if r.get("api", "").endswith(".relu"))
        share = recorded / traced["calls"]
    return {
        "us": spread(added),
        "plain_us": spread(alone),
        "recorded_share": round(share, 3),
        "target_us": CALL_TARGET_US,
    }


VIEW_COLUMNS = ("again", "view", "view all", "view every mean", "view every skipped")
COLUMNS = ("again", "default", "selective", "rules", "every mean", "every skipped")
PEER_COLUMNS = ("peer", "peer selective")


def show(result: dict[str, Any]) -> str:
    """The result as tables: ratios as median (min-max), then the limits."""
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
            f"one recorded call: {_cell(call['us'])} us ({call['recorded_share']:.0%} recorded) "
            f"on top of {_cell(call['plain_us'])} us; asked <= {call['target_us']} us",
            f"machine: {result['machine']}",
        ]
    )


def show_view(result: dict[str, Any]) -> str:
    """The ratios of a view as a table, as median (min-max)."""
    header = ["program", "plain ms", *VIEW_COLUMNS]
    rows = [
        [
            p["program"],
            f"{p['plain_ms']['median']:.2f}",
            *(_cell(p["ratios"].get(column)) for column in VIEW_COLUMNS),
        ]
        for p in result["programs"]
    ]
    return "\n".join([harness.table(header, rows), "", f"machine: {result['machine']}"])


def _cell(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['median']:.2f} ({figures['min']:.2f}-{figures['max']:.2f})"


RISING = {  # column -> name of the kind of recording
    "default": "default",
    "selective": "selective",
    "rules": "rules",
    "every skipped": "skipped",
}


def rises(bench: Bench) -> list[dict[str, Any]]:
    """For each kind of recording: median ratio before and after, and whether it rose too much.

    ``by_round`` is the spread of the differences of single rounds, which share their noise.
    """
    found = []
    for column, kind in RISING.items():
        before, after = bench.ratios[_BEFORE + column], bench.ratios[column]
        rise = statistics.median(after) - statistics.median(before)
        found.append(
            {
                "recording": kind,
                "before": spread(before),
                "after": spread(after),
                "rise": round(rise, 4),
                "by_round": spread([new - old for new, old in zip(after, before)]),
                "may_rise": bench.program.may_rise,
                "within": rise <= bench.program.may_rise,
            }
        )
    return found


def show_rises(result: dict[str, Any]) -> str:
    """A row for each program and kind of recording, then the verdict."""
    header = ["program", "recording", "before", "after", "rise", "by round", "may rise", ""]
    rows = [
        [
            p["program"],
            r["recording"],
            *(_cell(r[key]) for key in ("before", "after")),
            f"{r['rise']:+.3f}",
            f"{r['by_round']['min']:+.3f} to {r['by_round']['max']:+.3f}",
            r["may_rise"],
            "ok" if r["within"] else "TOO MUCH",
        ]
        for p in result["programs"]
        for r in p["rises"]
    ]
    noise = [f"{p['program']} {_cell(p['again'])}" for p in result["programs"]]
    failed = sum(row[-1] != "ok" for row in rows)
    verdict = "every ratio is within its limit"
    if failed:
        verdict = f"{failed} of {len(rows)} ratios rose by more than they may"
    return "\n".join(
        [
            harness.table(header, rows),
            "",
            f"the plain program again, which should be 1: {', '.join(noise)}",
            f"before: {result['before']}",
            f"after: {result['after']}",
            f"machine: {result['machine']}, {result['rounds']} rounds",
            f"verdict: {verdict}",
        ]
    )


def run_rounds(
    options: argparse.Namespace, folder: Path, versions: Mapping[str, Checkout]
) -> list[Bench]:
    """All requested programs, in rounds."""
    if hasattr(os, "sched_setaffinity"):  # compared variants run on one core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peer = Peer(python=options.peer, folder=folder) if options.peer else None
    benches = []
    for program in PROGRAMS:
        if not options.only or program.letter in options.only.split(","):
            place = folder / program.name
            place.mkdir()
            bench = Bench(program=program, folder=place, peer=peer, versions=versions)
            bench.view = options.view
            benches.append(bench)
            if not options.view:
                bench.prepare(peer_infers=not options.quick)
    for number in range(options.rounds):
        for bench in benches:
            print(f"round {number + 1} of {options.rounds}: {bench.program.name}", file=sys.stderr)
            bench.round()
    return benches


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run everything that was requested, in rounds over all programs."""
    before = harness.describe_machine()
    benches = run_rounds(options, folder, {"": Checkout()})
    parts: dict[str, Any] = {}
    if not options.view:
        parts["startup"] = measure_startup(folder, options.rounds)
        parts["call"] = measure_call(folder, options.rounds)
    return {
        "machine": {**before, "load_after": harness.describe_machine()["load"]},
        "rounds": options.rounds,
        **parts,
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


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure this version of traincheck and another in the same rings."""
    machine = harness.describe_machine()
    versions = {_BEFORE: checkout_at(options.against, folder / "against"), "": Checkout()}
    described = [version.describe(folder) for version in versions.values()]
    benches = run_rounds(options, folder, versions)
    return {
        "machine": {**machine, "load_after": harness.describe_machine()["load"]},
        "rounds": options.rounds,
        "before": described[0],
        "after": described[1],
        "programs": [
            {
                "program": f"({bench.program.letter}) {bench.program.name}",
                "plain_ms": spread(bench.plain_ms),
                "again": spread(bench.ratios["again"]),
                "rises": rises(bench),
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
    parser.add_argument(
        "--against", type=Path, help="compare with another version: a checkout, or its Python"
    )
    parser.add_argument(
        "--view", default="", choices=VIEWS, help="measure this view in place of the usual kinds"
    )
    options = parser.parse_args(argv)
    if options.view and options.against:
        parser.error("--view and --against cannot be used together")
    options.rounds = 2 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as scratch:
        measured = (compare if options.against else measure)(options, Path(scratch))
    shown = show_rises if options.against else show_view if options.view else show
    print(shown(measured))
    harness.write_json(options.json, measured)
    rows = [row for p in measured["programs"] for row in p.get("rises", ())]
    return int(not all(row["within"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
