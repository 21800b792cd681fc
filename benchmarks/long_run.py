"""A long run with a bug near its end: room on the disk and memory that `traincheck run` takes.

    python -m benchmarks.long_run
    python -m benchmarks.long_run --steps 3000 --max-trace 4MB --workers 2

The program trains a small model and forgets zero_grad() from some step on. Sampled while it runs:
the room that the trace takes on the disk, and the resident memory of the process that checks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import command

PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, bug, workers, per_epoch = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
inputs = torch.randn(8 * per_epoch, 16)
loader = DataLoader(
    TensorDataset(inputs, inputs[:, :4].argmax(1)), 8, shuffle=True, num_workers=workers
)
step = 0
while step < steps:
    for x, y in loader:
        if step < bug:
            optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        step += 1
        if step == steps:
            break
"""


def room(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # removed just now
            continue
    return total


def resident(pid: int) -> int:
    """Bytes of memory of a process; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--bug", type=int, help="its first step [default: 500 before the end]")
    parser.add_argument("--max-trace", default="100MB")
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader")
    parser.add_argument("--per-epoch", type=int, default=1000, help="steps in an epoch")
    parser.add_argument("--every-s", type=float, default=1.0, help="seconds between two samples")
    given = parser.parse_args(words)
    bug = given.steps - 500 if given.bug is None else given.bug
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(PROGRAM)
        numbers = map(str, (given.steps, bug, given.workers, given.per_epoch))
        options = ["--max-trace", given.max_trace, "--report", "json=report.json"]
        began = time.monotonic()
        process = subprocess.Popen(
            [command("traincheck"), "run", *options, script, *numbers],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        samples = []
        while process.poll() is None:
            sample = (time.monotonic() - began, room(Path(folder)), resident(process.pid))
            samples.append(sample)
            print("{:8.0f} s {:12,} B on disk {:12,} B in memory".format(*sample), flush=True)
            time.sleep(given.every_s)
        assert process.stderr is not None
        print(process.stderr.read(), file=sys.stderr)
        report = json.loads(Path(folder, "report.json").read_text())
        kept = sum(path.stat().st_size for path in Path(folder, "traces").rglob("events-*"))
    tenth = samples[len(samples) // 10 :]
    result = {
        "steps": report["summary"]["steps"],
        "first_finding": report["findings"][0]["first_step"] if report["findings"] else None,
        "bug": bug,
        "seconds": round(time.monotonic() - began),
        "most_on_disk_mb": round(max(s[1] for s in samples) / 1e6, 1),
        "kept_mb": round(kept / 1e6, 1),
        "memory_after_a_tenth_mb": round(tenth[0][2] / 1e6, 1),
        "most_memory_mb": round(max(s[2] for s in samples) / 1e6, 1),
    }
    print(json.dumps(result))
    return 0 if result["first_finding"] == bug else 1


if __name__ == "__main__":
    sys.exit(main())
