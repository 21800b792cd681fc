"""Run damaged inputs through every command, each in a separate process, and report failures."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.cases import Case, cases
from benchmarks.fuzz.corpus import make_corpus
from traincheck.cli import main as entry
from traincheck.errors import TraincheckError
from traincheck.schema.words import printable_lines

ALLOWED = frozenset({0, 1, 2, 4})
MOST_S = 60
MOST_MB = 500
_SHOWN = 1_500
# What a terminal obeys, or what changes how text reads.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended.

    status: None when it took too long. megabytes: most memory, beside what this process held.
    """

    status: int | None
    seconds: float
    megabytes: float
    out: str
    err: str

    @property
    def fault(self) -> str | None:
        """The broken requirement, if any."""
        if self.status not in ALLOWED:
            return "too slow" if self.status is None else f"exit status {self.status}"
        if "Traceback (most recent call last)" in self.err:
            return "traceback"
        if self.megabytes > MOST_MB:
            return f"{self.megabytes:.0f} MB"
        obeyed = _OBEYED.search(self.out) or _OBEYED.search(self.err)
        if obeyed is not None:
            return f"wrote {obeyed[0]!r}"
        return None


def invoke(command: tuple[str, ...] | list[str]) -> int:
    """Run a command in this process."""
    if command[0] == "parquet":
        from traincheck.store.columnar import read_parquet

        try:
            return sum(1 for _ in read_parquet(command[1])) * 0
        except TraincheckError as error:
            print(printable_lines(f"error: {error}"), file=sys.stderr)
            return 2
    return entry.run(entry.load(command[0]), f"traincheck {command[0]}", command[1:])


def run_case(case: Case, corpus: Path, scratch: Path) -> Outcome:
    """Run one case in a forked process."""
    folder = scratch / f"case{case.number}"
    case.prepare(corpus, folder)
    files = [scratch / f"out{case.number}", scratch / f"err{case.number}"]
    began = time.monotonic()
    inherited = _resident_mb()
    pid = os.fork()
    if not pid:
        _child(case, folder, files)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    out, err = (path.read_bytes().decode("utf-8", "backslashreplace") for path in files)
    for path in files:
        path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return Outcome(
        status=None if code == -signal.SIGALRM else code,
        seconds=seconds,
        megabytes=usage.ru_maxrss / 1024 - inherited,
        out=out,
        err=err,
    )


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _child(case: Case, folder: Path, files: list[Path]) -> None:
    status = 99
    try:
        os.chdir(folder / case.cwd)
        for descriptor, path in zip((1, 2), files):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(d, "w", encoding="utf-8", closefd=False) for d in (1, 2))  # noqa: SIM115
        signal.alarm(MOST_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = invoke(list(case.command))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; exit status 1 when one of them broke something."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000, help="how many (default: 5000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases to run")
    parser.add_argument("--verbose", action="store_true", help="show what each case wrote")
    options = parser.parse_args(arguments)
    statuses: Counter[int | None] = Counter()
    faults, slowest, largest = 0, (0.0, ""), (0.0, "")
    with tempfile.TemporaryDirectory(prefix="traincheck-fuzz-") as folder:
        scratch = Path(folder)
        corpus = make_corpus(scratch / "corpus")
        for case in cases(options.seed, options.cases):
            if options.only and case.number not in options.only:
                continue
            found = run_case(case, corpus, scratch)
            statuses[found.status] += 1
            slowest = max(slowest, (found.seconds, str(case)))
            largest = max(largest, (found.megabytes, str(case)))
            if found.fault is not None or options.verbose:
                faults += found.fault is not None
                print(f"{case}\n  {found.fault}\n  {found.err[-_SHOWN:]}", flush=True)
            if options.verbose:
                print(found.out)
    told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items(), key=str))
    print(f"{statuses.total()} cases, seed {options.seed}; exit statuses {told}")
    print(f"faults {faults}")
    print("slowest {:.1f} s: {}".format(*slowest))
    print("most memory {:.0f} MB: {}".format(*largest))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
