"""Record all healthy programs as ``traincheck run --keep`` does, and count their facts.

    python -m benchmarks.population [--jobs N] [--keep FOLDER] [--out FILE] [--only WORD,...]
        [--recorded] [--new-kinds]

Writes the counts that traincheck comes with, traincheck/facts/population.json. With --keep, what
FOLDER holds is not recorded again. A program whose packages are missing is named and left out.
With --recorded, nothing is recorded, and programs that FOLDER lacks are left out. With --new-kinds,
only the kinds that the shipped counts lack are counted, over these programs; the others stay.

Exits with 1 when another program fails or fewer than 250 are left (100 with --new-kinds); then
nothing is written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.field.case import healthy_pipelines
from benchmarks.field.case import load_cases as field_cases
from benchmarks.harness import PROGRAMS, ROOT, WORKLOADS
from benchmarks.silent_bugs.case import clean_pipelines, launcher_of, load_cases
from benchmarks.silent_bugs.recordings import Recordings
from traincheck.errors import TraincheckError
from traincheck.facts.book import facts_of
from traincheck.facts.population import encoded, population_of, shipped
from traincheck.schema.facts import Fact
from traincheck.store.reader import TraceReader

OUT = ROOT / "traincheck" / "facts" / "population.json"
ENOUGH = 250
ENOUGH_FOR_NEW = 100
# Programs for people and for tests; the others in these folders have a fault or only help.
_OTHERS = (
    *(WORKLOADS / f"{name}.py" for name in ("cnn_mnist", "gpt_char", "mlp_digits", "resnet18")),
    *(
        PROGRAMS / f"{name}.py"
        for name in ("cnn_bf16", "finetune_digits", "gan", "gpt_tiny", "lbfgs", "mlp_dropout")
    ),
    ROOT / "examples" / "train_digits.py",
)


@dataclass(frozen=True, slots=True)
class Program:
    """A healthy program and its launcher, ``python`` or ``torchrun``."""

    script: Path
    launcher: str

    @property
    def name(self) -> str:
        """``cases/labels-with-padding/clean.py``."""
        return "/".join(self.script.parts[-3:])


@dataclass(frozen=True, slots=True)
class Counted:
    """The facts of a program, or else why it has none. is_missing: a package of it is missing."""

    facts: Sequence[Fact] = ()
    error: str = ""

    @property
    def is_missing(self) -> bool:
        return "ModuleNotFoundError: " in self.error or "is not recorded in" in self.error


def programs() -> list[Program]:
    """All healthy programs that the benchmarks have."""
    found = [Program(path, "python") for path in (*healthy_pipelines(), *_OTHERS)]
    found += [Program(path, launcher_of(path)) for path in clean_pipelines()]
    found += [Program(case.clean, case.launcher) for case in field_cases()]
    return found + [Program(case.healthy, case.launcher) for case in load_cases()]


def facts_in(run: Path) -> list[Fact]:
    """The facts of a recorded run."""
    return facts_of(TraceReader(run).events())


def counted(program: Program, recordings: Recordings, reading: Executor) -> Counted:
    """Record a program, and read its facts in another process."""
    try:
        run = recordings.kept(program.script, program.launcher)
        return Counted(reading.submit(facts_in, run).result())
    except (harness.CommandFailedError, subprocess.TimeoutExpired, TraincheckError) as error:
        return Counted(error=str(error))


def count(todo: Sequence[Program], recordings: Recordings, jobs: int) -> dict[Program, Counted]:
    """The facts of programs, with progress on stderr."""
    found: dict[Program, Counted] = {}
    spawned = multiprocessing.get_context("spawn")
    with (
        harness.warm_processes(),
        ProcessPoolExecutor(jobs, mp_context=spawned) as reading,
        ThreadPoolExecutor(jobs) as pool,
    ):
        futures = {pool.submit(counted, one, recordings, reading): one for one in todo}
        for number, future in enumerate(as_completed(futures), 1):
            program = futures[future]
            found[program] = future.result()
            failed = ": failed" if found[program].error else ""
            print(f"{number:,} of {len(todo):,}: {program.name}{failed}", file=sys.stderr)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Record and count what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.population",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--keep", type=Path, help="keep recordings here, and use those found here")
    parser.add_argument("--out", type=Path, default=OUT, help="write the counts here")
    parser.add_argument("--only", help="only programs with one of these words in their names")
    parser.add_argument("--recorded", action="store_true", help="record nothing")
    parser.add_argument("--new-kinds", action="store_true", help="count what is not yet counted")
    options = parser.parse_args(argv)
    if options.recorded and not options.keep:
        parser.error("--recorded needs --keep: the folder of the recordings")
    words = (options.only or "").split(",")
    todo = [one for one in programs() if any(word in one.name for word in words)]
    if options.only and options.out == OUT:
        parser.error("--only needs --out: the shipped counts are of all programs")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        recordings = Recordings(folder, is_complete=options.recorded)
        found = count(todo, recordings, options.jobs)
    healthy = [found[one].facts for one in todo if not found[one].error]
    failed = {one.name: found[one] for one in todo if found[one].error}
    for name, one in failed.items():
        print(f"{name}: {one.error.strip().splitlines()[-1]}", file=sys.stderr)
    took = time.monotonic() - began
    print(f"{len(healthy):,} of {len(todo):,} programs counted in {took:,.0f} s")
    enough = ENOUGH_FOR_NEW if options.new_kinds else ENOUGH
    if options.only:
        enough = 1
    if len(healthy) < enough or not all(one.is_missing for one in failed.values()):
        return 1
    population = population_of(healthy)
    if options.new_kinds:
        population = shipped().with_new_kinds(population)
    options.out.write_bytes(encoded(population))
    return 0


if __name__ == "__main__":
    sys.exit(main())
