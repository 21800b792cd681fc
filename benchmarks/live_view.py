"""Cost of `traincheck top` and `traincheck status` beside a run that records fast.

    python -m benchmarks.live_view [--rate N] [--seconds N] [--trace DIR] [--json FILE]

A recorded run is written again, at a constant rate of events, while the view follows it in a
pseudo-terminal of 80x24. A step that is shown is behind from the moment at which the end of the
next one was written, until another screen replaces it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.report_page import write

TARGETS = {"behind": "<= 1 s", "CPU": "<= 10 % of a core"}
_TICK_S = 0.02
_SIZE = struct.pack("HHHH", 24, 80, 0, 0)
_STEP = re.compile(rb"step ([\d,]+)")
_START_S = 60.0  # of the first screen at the latest
_SETTLING_S = 2.0  # after it, which are not measured


class Replay:
    """Writes the files of a run again, line by line.

    Attributes:
        ended_s: step -> when its end was written.
    """

    def __init__(self, source: Path, target: Path) -> None:
        target.mkdir()
        paths = sorted(source.glob("events-*.jsonl"))
        self._files = [(target / path.name).open("ab", buffering=0) for path in paths]
        self._lines = [path.read_bytes().splitlines(keepends=True) for path in paths]
        self._done = 0  # lines of each file
        (target / "manifest.json").write_text(_running(source), encoding="utf-8")
        self.ended_s: dict[int, float] = {}

    def play(self, rate: float, stop: threading.Event) -> None:
        """Write so many events a second, all files together, until they end."""
        began, count = time.monotonic(), len(self._files)
        while not stop.is_set() and self._done < max(map(len, self._lines)):
            time.sleep(_TICK_S)
            self.advance(int((time.monotonic() - began) * rate / count))

    def advance(self, until: int) -> None:
        """Write the lines of each file up to this one."""
        for file, lines in zip(self._files, self._lines):
            file.write(b"".join(lines[self._done : until]))
        now = time.monotonic()
        for line in self._lines[0][self._done : until]:
            if line.startswith(b'{"k":"step"'):
                self.ended_s[len(self.ended_s)] = now
        self._done = until


def _running(source: Path) -> str:
    """The manifest of a run that has not ended."""
    import orjson

    manifest = orjson.loads((source / "manifest.json").read_bytes())
    manifest.update(ended=None, exit_status=None, processes=[])
    return orjson.dumps(manifest).decode()


def watch(directory: Path, replay: Replay, seconds: float) -> dict[str, Any]:
    """Follow the run with `traincheck top`. Share of a core, and seconds behind."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, _SIZE)
    command = [sys.executable, "-m", "traincheck", "top", str(directory)]
    environ = {**os.environ, "TERM": "xterm-256color"}
    viewer = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environ
    )
    os.close(follower)
    behind: list[float] = []
    try:
        next(_seen(leader, time.monotonic() + _START_S))
        for _ in _seen(leader, time.monotonic() + _SETTLING_S):
            pass
        cpu_s, began = _cpu_s(viewer.pid), time.monotonic()
        before: int | None = None
        for when, step in _seen(leader, began + seconds):
            following = None if before is None else replay.ended_s.get(before + 1)
            behind.append(0.0 if following is None else max(when - following, 0.0))
            before = step
        share = (_cpu_s(viewer.pid) - cpu_s) / (time.monotonic() - began)
    finally:
        os.write(leader, b"q")
        viewer.wait(10)
        os.close(leader)
    return {"share": round(share, 3), "behind_s": round(max(behind), 2), "frames": len(behind)}


def _seen(leader: int, until: float) -> Iterator[tuple[float, int]]:
    """Each step that the screen shows, with the moment at which it does."""
    while (left := until - time.monotonic()) > 0:
        if select.select([leader], [], [], left)[0]:
            found = _STEP.findall(os.read(leader, 1 << 16))
            if found:
                yield time.monotonic(), int(found[-1].replace(b",", b""))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=20_000, help="events a second")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--trace", type=Path, help="a recorded run; else one is generated")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        source = options.trace or Path(scratch) / "source"
        if options.trace is None:
            steps = int(options.rate * (options.seconds + 6 * _SETTLING_S)) // 1200
            write(source, steps)
        target = Path(scratch) / "run"
        replay, stop = Replay(source, target), threading.Event()
        replay.advance(2)
        thread = threading.Thread(target=replay.play, args=(options.rate, stop))
        thread.start()
        try:
            result = watch(target, replay, options.seconds)
            done = harness.run([sys.executable, "-m", "traincheck", "status", target])
        finally:
            stop.set()
            thread.join()
    result |= {"status_cpu_s": round(done.cpu_s, 2), "status": done.stdout.strip()}
    row = [f"{result['share']:.1%}", result["behind_s"], result["frames"], result["status_cpu_s"]]
    print(harness.table(["top: of a core", "s behind", "screens", "status: CPU s"], [row]))
    print(result["status"], *(f"\n{name}: {bar}" for name, bar in TARGETS.items()))
    harness.write_json(options.json, {"machine": harness.describe_machine(), "live_view": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
