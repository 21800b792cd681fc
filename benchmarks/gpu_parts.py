"""The parts of ``make gpu``: tests, overhead, waiting for the device, bits. Each returns figures.

A part that finds something wrong returns it under ``failed``, in one line.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, WORKLOADS, Done, spread

SCRIPT = WORKLOADS / "on_gpu.py"
MOST_ROUNDS = 3
LAPS, LAP = 6, 5  # the first lap does not count: kernels are chosen, memory is taken
SKIP = 1_000_000  # with --every: after the warm-up no step is recorded
MODELS = ("cnn", "gpt", "resnet18")
RECORDED = ("default", "rules")
_MANY_CORES = 8
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "selective": {"invariants": None},
    "rules": {"rules": True},
    "skipped": {"every": SKIP, "more": ("--warmup", "1")},
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a part runs. seconds: after which nothing more is begun. part: its name."""

    folder: Path
    python: str
    on_cpu: bool = False
    seconds: float = 60.0
    part: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until no more time is left, at least one."""
        return max(1.0, self.began + self.seconds - time.monotonic())

    def keep(self, found: Mapping[str, Any]) -> None:
        """Figures of the part so far, kept even if it is ended before it is done."""
        harness.write_json(self.folder / f"{self.part}.json", found)

    def env(self, model: str, **more: str | int) -> dict[str, str | int]:
        """Settings of the program."""
        device, size = ("cpu", "tiny") if self.on_cpu else ("cuda", "full")
        laps, lap = (3, 2) if self.on_cpu else (LAPS, LAP)
        return {
            "UP_MODEL": model, "UP_DEVICE": device, "UP_SIZE": size, "UP_LAPS": laps,
            "UP_LAP": lap, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more,
        }  # fmt: skip

    def plain(self, env: Mapping[str, str | int]) -> Done:
        return harness.run([self.python, SCRIPT], env=env, timeout_s=self.left).expect()

    def record(self, out: Path, env: Mapping[str, str | int], **options: Any) -> Done:
        return harness.collect(
            SCRIPT, out, env=env, python=self.python, timeout_s=self.left, **options
        ).expect()


@dataclass(frozen=True, slots=True)
class Part:
    """One part. weight: its share of the time."""

    run: Callable[[RunOptions], dict[str, Any]]
    weight: float
    title: str


def tests(options: RunOptions) -> dict[str, Any]:
    """The tests that need a GPU. Without one they are collected, and skipped."""
    argv = [options.python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    argv += ["-o", "faulthandler_timeout=120", str(ROOT / "tests" / "collect")]
    done = harness.run(argv, cwd=ROOT, timeout_s=options.left)
    found = {
        word: int(count)
        for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout)
    }
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    result: dict[str, Any] = {"tests": found, "failures": failed}
    if done.returncode or not found:
        said = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        result["failed"] = f"pytest ended with {done.returncode}: {', '.join(failed) or said}"
    return result


def overhead(options: RunOptions, *, model: str) -> dict[str, Any]:
    """Wall time of a step by each kind of recording, as a ratio to the plain program's.

    All take turns, a lap each, in rings as in benchmarks.overhead.
    """
    folder = options.folder / f"overhead-{model}"
    folder.mkdir()
    learned = _learn(options, folder, model)
    began = time.monotonic()
    found = _Overhead(model)
    for number in range(MOST_ROUNDS):
        took = (time.monotonic() - began) / max(number, 1)
        if number and took > options.left:  # not another one like these
            break
        found.add(_ring(options, folder, model, number, learned))
        options.keep(found.figures())
    return found.figures()


class _Overhead:
    """Ratios of the rounds of one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._plain_ms: list[float] = []
        self._ratios: dict[str, list[float]] = {}
        self._first: dict[str, Any] = {}

    def add(self, times: Mapping[str, Any]) -> None:
        """The measurements of the variants in one round, lap by lap."""
        self._first = self._first or dict(times)
        plain = times["plain"]["wall"]
        self._plain_ms.append(statistics.median(plain[1:]) * 1e3)
        for name, found in times.items():
            if name != "plain":
                laps = [mine / base for mine, base in zip(found["wall"][1:], plain[1:])]
                self._ratios.setdefault(name, []).append(statistics.median(laps))

    def figures(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "model": self._model,
            "params": self._first["plain"]["params"],
            "rounds": len(self._plain_ms),
            "plain_ms": spread(self._plain_ms),
            "ratios": {name: spread(values) for name, values in self._ratios.items()},
            "peak_mb": {name: round(found["peak_mb"]) for name, found in self._first.items()},
        }


def _learn(options: RunOptions, folder: Path, model: str) -> Path:
    """The model's own invariants, for selective recording."""
    learned = folder / "own.invariant.json"
    options.record(folder / "reference", options.env(model, UP_LAPS=3, UP_LAP=4))
    harness.infer([folder / "reference"], learned, python=options.python, timeout_s=options.left)
    return learned


def _ring(
    options: RunOptions, folder: Path, model: str, number: int, learned: Path
) -> dict[str, Any]:
    """Each variant once, in turns."""
    variants: dict[str, Callable[[Mapping[str, str | int]], Done]] = {
        "plain": options.plain,
        "again": options.plain,
    }
    for kind, how in KINDS.items():
        given = {**how, **({"invariants": learned} if "invariants" in how else {})}
        variants[kind] = partial(options.record, folder / f"{kind}-{number}", **given)
    pipes = [folder / f"turn-{number}-{place}" for place in range(len(variants))]
    for pipe in pipes:
        os.mkfifo(pipe)
    first = os.open(pipes[0], os.O_RDWR)
    with ThreadPoolExecutor(len(variants)) as pool:
        jobs = []
        for place, (name, variant) in enumerate(variants.items()):
            turns = f"{pipes[place]}:{pipes[(place + 1) % len(pipes)]}:1"
            times = str(folder / f"times-{number}-{name}.json")
            jobs.append(pool.submit(variant, options.env(model, UP_TURNS=turns, UP_TIMES=times)))
        os.write(first, b".")
        for job in jobs:
            job.result()
    os.close(first)
    return {name: _read(folder / f"times-{number}-{name}.json") for name in variants}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _several(jobs: Mapping[str, Callable[[], Any]], keep: Callable[[str, Any], None]) -> list[str]:
    """Run jobs, some at a time, and store their results. Returns why any failed, as text."""
    problems = []
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(4 if cores >= _MANY_CORES else 1) as pool:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        for future in as_completed(futures):
            name = futures[future]
            try:
                keep(name, future.result())
            except subprocess.TimeoutExpired:
                problems.append(f"{name}: no time was left")
            except harness.CommandFailedError as error:
                problems.append(f"{name}: {str(error).strip().splitlines()[-1][:200]}")
    return sorted(problems)


def waits(options: RunOptions) -> dict[str, Any]:
    """Recorded steps while torch raises where the host waits for the device: none of ours may.

    What raises in our code is caught there, and written to the trace as a fault.
    """
    faults: dict[str, list[str]] = {}

    def job(model: str, kind: str) -> list[str]:
        out = options.folder / f"waits-{model}-{kind}"
        options.record(out, options.env(model, UP_LAPS=2, UP_SYNC="error"), **KINDS[kind])
        marks = [record for record in harness.records(out) if record["k"] == "mark"]
        return [json.dumps(mark.get("data")) for mark in marks if mark.get("text") == "fault"]

    def keep(name: str, found: list[str]) -> None:
        faults[name] = found
        options.keep({"faults": faults})

    jobs = {f"{m}, {kind}": partial(job, m, kind) for kind in RECORDED for m in MODELS}
    problems = _several(jobs, keep)
    problems += [f"{name}: raised where torch forbids to wait" for name, f in faults.items() if f]
    return {"faults": faults, **({"failed": "; ".join(problems)} if problems else {})}


def bits(options: RunOptions) -> dict[str, Any]:
    """Whether the weights after some steps are the same with and without recording, bit by bit."""
    weights: dict[str, str] = {}

    def job(model: str, kind: str) -> str:
        times = options.folder / f"bits-{model}-{kind}.json"
        env = {**options.env(model, UP_LAPS=2, UP_EXACT=1), "UP_TIMES": str(times)}
        if kind in KINDS:
            options.record(options.folder / f"bits-{model}-{kind}", env, **KINDS[kind])
        else:
            options.plain(env)
        return str(_read(times)["weights"])

    def keep(name: str, found: str) -> None:
        weights[name] = found
        options.keep({"same": _compared(weights)})

    kinds = ("plain", "again", *RECORDED)
    problems = _several({f"{m}, {k}": partial(job, m, k) for k in kinds for m in MODELS}, keep)
    same = _compared(weights)
    problems += [f"{name}: other weights" for name, is_same in same.items() if is_same is False]
    return {"same": same, **({"failed": "; ".join(problems)} if problems else {})}


def _compared(weights: Mapping[str, str]) -> dict[str, bool | None]:
    """Whether the weights of each recorded run equal those of the plain one.

    None where nothing can be said, as the plain program does not repeat itself.
    """
    same: dict[str, bool | None] = {}
    for model in MODELS:
        plain, again = (weights.get(f"{model}, {name}") for name in ("plain", "again"))
        for kind in RECORDED:
            found = weights.get(f"{model}, {kind}")
            if None not in (plain, again, found):
                same[f"{model}, {kind}"] = found == plain if plain == again else None
    return same


PARTS = {
    "tests": Part(tests, 1.0, "Tests marked `gpu`"),
    "waits": Part(waits, 0.8, "Steps in which torch forbids to wait for the device"),
    "bits": Part(bits, 1.0, "Weights with and without recording"),
    **{
        f"overhead-{model}": Part(partial(overhead, model=model), 1.5, f"Overhead of {model}")
        for model in MODELS
    },
}
