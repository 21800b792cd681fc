"""The cost of `traincheck diff` on two long traces whose first difference is at the end.

    python -m benchmarks.diff_speed [--events 1000000] [--folder DIR]

The bar for a million events: at most 10 s of CPU and 300 MB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.harness import run
from benchmarks.make_trace import write

MOST_CPU_S, MOST_MB = 10.0, 300.0
_VALUE = b'"role":"optimizer_state"'
_FINGERPRINT = b'"fingerprint":"xxh3:'


def make_pair(folder: Path, events: int) -> tuple[Path, Path]:
    """Two traces that differ in one digit of the last optimizer state."""
    a, b = folder / "a", folder / "b"
    write(a, events)
    shutil.copytree(a, b)
    path = next(b.glob("*.jsonl"))
    content = bytearray(path.read_bytes())
    place = content.index(_FINGERPRINT, content.rindex(_VALUE)) + len(_FINGERPRINT)
    content[place : place + 1] = b"f" if content[place : place + 1] != b"f" else b"e"
    path.write_bytes(content)
    return a, b


def measure(a: Path, b: Path) -> dict[str, float | int | str]:
    """Compare the two, and what it took."""
    words = (sys.executable, "-m", "traincheck", "diff", a, b, "--format", "json")
    done = run(words).expect(1)
    first = json.loads(done.stdout)["first"]
    return {
        "step": first["step"],
        "phase": first["phase"],
        "cpu_s": round(done.cpu_s, 2),
        "peak_mb": round(done.peak_mb, 1),
    }


def main() -> int:
    """Measure, print the figures, and fail above the bar."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="for the traces; temporary by default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = chosen.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        # In a child: the peak of a new process begins with that of its parent
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pair = pool.submit(make_pair, folder, chosen.events).result()
        found = measure(*pair)
    print(json.dumps({"events": chosen.events, **found}))
    is_within = float(found["cpu_s"]) <= MOST_CPU_S and float(found["peak_mb"]) <= MOST_MB
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
