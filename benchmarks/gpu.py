"""``make gpu``: test and measure on a CUDA device, in one go, and write docs/cuda.md.

    python3 -m benchmarks.gpu [--dry-run-on-cpu] [--deadline SECONDS] [--only PARTS] [--out FOLDER]

Needs only Python: missing packages are installed into a virtual environment that also has the
packages of the running Python, torch included. Each part runs in a separate process and has a time
limit. A failing part is reported and does not stop the others. When time gets short, parts measure
fewer rounds. Without a CUDA device all parts are skipped, and no page is written;
``--dry-run-on-cpu`` runs them at tiny sizes on the CPU, to test this script.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gpu_page, gpu_setup, harness
from benchmarks.gpu_parts import PARTS, RunOptions
from benchmarks.harness import ROOT

PAGE, FIGURES = "cuda.md", "cuda.json"
DEADLINE_S = 450.0
_LEAST_S = 20.0  # under this a part is not begun
OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Done:
    """How a part ended. found: its figures. reason: why there are none, in one line."""

    status: str
    seconds: float
    found: dict[str, Any]
    reason: str = ""


def has_device(python: str) -> str | None:
    """The name of the CUDA device that this Python's torch sees; None where there is none."""
    ask = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    try:
        done = harness.run([python, "-c", ask], timeout_s=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def run_part(name: str, options: RunOptions, python: str, limit_s: float) -> Done:
    """Run one part in a separate process, and end it with all its processes after ``limit_s``."""
    out = options.folder / f"{name}.json"
    argv = [python, "-m", "benchmarks.gpu", "--part", name, "--folder", str(options.folder)]
    argv += ["--seconds", str(limit_s * 0.9)]
    argv += ["--dry-run-on-cpu"] if options.on_cpu else []
    log = options.folder / f"{name}.log"
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = round(time.monotonic() - began, 1)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if status == 0:
        return Done(OK, seconds, found)
    if status is None:
        return Done(FAILED, seconds, found, f"not done after {limit_s:.0f} s")
    return Done(FAILED, seconds, found, _last_line(log))


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")[:300]


def run_all(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Set up, run the requested parts, and return their results.

    Each part gets its share of the time that is left, by the weights in `PARTS`.
    """
    began = time.monotonic()
    setup = gpu_setup.prepare(folder / "venv", progress=_say)
    python = str(setup.python)
    device = has_device(python)
    names = [name for name in PARTS if not options.only or name in options.only.split(",")]
    parts: dict[str, Done] = {}
    for place, name in enumerate(names):
        left = options.deadline - (time.monotonic() - began)
        share = sum(PARTS[later].weight for later in names[place:])
        limit = min(left, max(_LEAST_S, left * PARTS[name].weight / share * 1.5))
        if device is None and not options.dry_run_on_cpu:
            parts[name] = Done(SKIPPED, 0.0, {}, "no CUDA device that torch can use")
        elif left < _LEAST_S:
            parts[name] = Done(SKIPPED, 0.0, {}, f"only {left:.0f} s were left")
        else:
            run = RunOptions(folder, python, on_cpu=options.dry_run_on_cpu)
            parts[name] = run_part(name, run, python, limit)
        done = parts[name]
        _say(f"{name}: {done.status} in {done.seconds:.0f} s {done.reason}".rstrip())
    return {
        "device": device,
        "is_dry_run": options.dry_run_on_cpu,
        "date": time.strftime("%Y-%m-%d"),
        "machine": {**harness.describe_machine(), **setup.versions},
        "problems": list(setup.problems),
        "seconds": round(time.monotonic() - began, 1),
        "parts": {
            name: {
                "status": done.status,
                "seconds": done.seconds,
                **({"reason": done.reason} if done.reason else {}),
                **done.found,
            }
            for name, done in parts.items()
        },
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run_one(options: argparse.Namespace) -> int:
    """The process of one part, started by `run_part`. Its figures go into the folder."""
    run = RunOptions(
        options.folder,
        sys.executable,
        on_cpu=options.dry_run_on_cpu,
        seconds=options.seconds,
        part=options.part,
    )
    found = PARTS[options.part].run(run)
    run.keep(found)
    print(found.get("failed", "done"))
    return int("failed" in found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run-on-cpu", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds, all together")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="where figures go; default: docs, with a device")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu", help="for the rest")
    for name, kind in (("--part", str), ("--folder", Path), ("--seconds", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        return _run_one(options)
    folder = options.work.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = run_all(options, folder)
    out = options.out or (ROOT / "docs" if result["device"] and not result["is_dry_run"] else None)
    page = gpu_page.page(result)
    if out is None:
        print("no CUDA device: nothing was measured, and docs/cuda.md stays as it is")
    else:
        out.mkdir(parents=True, exist_ok=True)
        (out / PAGE).write_text(page, encoding="utf-8")
        harness.write_json(out / FIGURES, result)
    print(page)
    return int(any(part["status"] == FAILED for part in result["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
