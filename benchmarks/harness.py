"""Run programs and the commands of traincheck as a user does, and measure their cost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ROOT / "benchmarks" / "workloads"
PROGRAMS = ROOT / "tests" / "detection" / "programs"

Variables = Mapping[str, "str | int | float"]

_TAIL = 2000  # characters of stderr worth showing when a command fails


class CommandFailedError(Exception):
    """A command of a measurement ended with a status that makes its figures worthless."""


# On a busy machine one job of two ranks in some twenty ends like this, recorded or not: a thread of
# gloo is still running when its process is torn down.
_GLOO_ENDS = "terminate called without an active exception"
_MORE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished command.

    cpu_s: user and system time of it and all it waited for. peak_mb: the largest process of them.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    peak_mb: float

    def expect(self, *statuses: int) -> Done:
        """This, when it ended with one of the statuses, 0 when none is given.

        Raises:
            CommandFailedError: it ended otherwise; shows what it printed.
        """
        if self.returncode not in (statuses or (0,)):
            command = " ".join(self.argv)
            said = f"{self.stdout[-_TAIL:]}\n{self.stderr[-_TAIL:]}"
            raise CommandFailedError(f"{command}\nended with {self.returncode}:\n{said}")
        return self


def run(
    argv: Sequence[str | Path],
    *,
    env: Variables | None = None,
    cwd: Path | None = None,
    timeout_s: float = 900,
    out: Path | None = None,
) -> Done:
    """Run a command to its end, with ``env`` added to the environment and one thread a process.

    Time and memory come from ``wait4`` on this process: those of earlier commands do not count.
    Once more where gloo aborts a rank that has done its work; what is in ``out`` goes before.
    """
    words = tuple(str(word) for word in argv)
    done = _run(words, env, cwd, timeout_s)
    for _ in range(_MORE):
        if done.returncode == 0 or _GLOO_ENDS not in done.stderr:
            break
        if out is not None:
            shutil.rmtree(out, ignore_errors=True)
        done = _run(words, env, cwd, timeout_s)
    return done


def _run(words: tuple[str, ...], env: Variables | None, cwd: Path | None, timeout_s: float) -> Done:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in (env or {}).items()}}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed tool is not compiled at each start
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(words, env=environ, cwd=cwd, stdout=out, stderr=err)
        try:
            status, usage = _wait(process, timeout_s)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        wall_s = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        return Done(
            argv=words,
            returncode=os.waitstatus_to_exitcode(status),
            stdout=out.read().decode(errors="replace"),
            stderr=err.read().decode(errors="replace"),
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mb=usage.ru_maxrss / 1024,
        )


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        time.sleep(0.005)
    raise subprocess.TimeoutExpired(process.args, timeout_s)


@contextlib.contextmanager
def warm_processes() -> Iterator[None]:
    """Start programs as copies of a process that has torch loaded, as tests do (tests/warm.py)."""
    from tests import warm

    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        end = warm.start(Path(folder))
        warm.use(os.environ[warm.ADDRESS])
        try:
            yield
        finally:
            warm.use("")
            end()


def command(name: str, python: str = sys.executable) -> str:
    """Path of one of our commands: the one beside a Python, by default the running one."""
    return str(Path(python).with_name(name))


def plain(script: Path, *, env: Variables | None = None, timeout_s: float = 900) -> Done:
    """Run a script without recording."""
    return run([sys.executable, script], env=env, timeout_s=timeout_s)


def collect(  # noqa: PLR0913  # options of the command, each with its default
    script: Path | Sequence[str | Path],
    out: Path,
    *,
    env: Variables | None = None,
    invariants: Path | None = None,
    rules: bool = False,
    every: int = 1,
    more: Sequence[str] = (),
    timeout_s: float = 900,
    python: str = sys.executable,
    cwd: Path | None = None,
) -> Done:
    """Record a run of a script into ``out``; with invariants or rules, only their needs.

    script: one of Python, or the words of any command. python: whose traincheck records.
    cwd: the folder that the program runs in.
    """
    program = ["-p", script] if isinstance(script, Path) else ["--", *script]
    options: list[str | Path] = ["-o", out, *more]
    if invariants is not None:
        options += ["-i", invariants]
    if rules:
        options += ["--rules"]
    if every != 1:
        options += ["--every", str(every)]
    argv = [command("traincheck-collect", python), *options, *program]
    return run(argv, env=env, cwd=cwd, timeout_s=timeout_s, out=out)


def infer(
    traces: Iterable[Path],
    out: Path,
    *,
    env: Variables | None = None,
    timeout_s: float = 900,
    python: str = sys.executable,
) -> Done:
    """Learn invariants from recorded runs. python: whose traincheck learns."""
    options = [word for trace in traces for word in ("-t", trace)]
    out.unlink(missing_ok=True)  # infer does not replace it
    argv = [command("traincheck-infer", python), *options, "-o", out]
    return run(argv, env=env, timeout_s=timeout_s).expect()


def check(
    trace: Path, invariants: Sequence[Path] = (), *, rules: bool = True, timeout_s: float = 900
) -> dict[str, Any]:
    """Check a recorded run. Returns the JSON report."""
    done = run(check_argv(trace, invariants, rules=rules), timeout_s=timeout_s).expect(0, 1)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check_argv(trace: Path, invariants: Sequence[Path] = (), *, rules: bool = True) -> list[str]:
    """The command line that checks a run and prints JSON."""
    options = [word for path in invariants for word in ("-i", str(path))]
    options += [] if rules else ["--no-rules"]
    return [
        command("traincheck-check"),
        "-t",
        str(trace),
        *options,
        "--allow-empty",
        "--format",
        "json",
    ]


def event_files(trace: Path) -> list[Path]:
    """The event files of a run, or of the runs in a folder."""
    return sorted(trace.rglob("events-*.jsonl"))


def records(trace: Path) -> Iterator[dict[str, Any]]:
    """Every event of a run in its form on disk, file by file."""
    for path in event_files(trace):
        with path.open("rb") as lines:
            yield from (json.loads(line) for line in lines)


def describe_machine() -> dict[str, Any]:
    """The machine of the figures; load as the one-minute average over all cores."""
    return {
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range of repeated measurements."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as text in aligned columns; the first is left-aligned."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    )


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write a result if a path was given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
