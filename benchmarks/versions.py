"""``make versions``: the tests on several versions of torch, and the table in docs/benchmark.md.

    python3 -m benchmarks.versions [VERSION ...] [--tests PATH ...] [--without slow] [--jobs 2]
        [--folder .versions] [--page FILE]

A VERSION is that of torch, ``2.4`` (its last patch release), ``2.14.1`` or ``newest``, and may name
a Python: ``2.4@3.10``. Each has an environment in the folder, which is made when it is missing.
Tests that need a GPU, and nightly ones, are left out, and those with markers that ``--without``
names. Exits with 1 when a test fails somewhere, and
with 2 when an environment could not be made. Needs only Python.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import ROOT

ALL = ("2.4@3.10", "2.7@3.11", "2.10@3.12", "2.13@3.11", "newest@3.13")
NEWEST = "newest"
LEFT_OUT = ("gpu", "nightly")
PAGE = ROOT / "docs" / "benchmark.md"
HEADER = ("torch", "Python", "tests", "passed", "failed", "skipped", "commit", "date")
BEGIN, END = "<!-- begin measured: versions -->\n", "<!-- end measured: versions -->\n"
# Packages whose pinned release needs a newer torch than these, and what goes instead. A bare name
# is installed as the others ask.
OLDER: dict[tuple[int, int], tuple[str, ...]] = {
    (2, 6): ("transformers<5", "huggingface-hub", "tokenizers"),
}
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one environment. failed: names of tests; None if the run did not end."""

    torch: str
    python: str
    tests: str
    passed: int
    failed: tuple[str, ...] | None
    skipped: int
    commit: str
    date: str

    def cells(self) -> tuple[str, ...]:
        failed = "did not end" if self.failed is None else str(len(self.failed))
        counts = (f"{self.passed:,}", failed, str(self.skipped))
        return (self.torch, self.python, self.tests, *counts, self.commit, self.date)


def requirement(torch: str) -> str:
    """The requirement for pip: two numbers stand for their last patch release."""
    if torch == NEWEST:
        return "torch"
    return f"torch=={torch}{'.*' if torch.count('.') == 1 else ''}"


def interpreter(python: str) -> str:
    """The command of this Python; the running one if none is named, or it is not there."""
    command = f"python{python}"
    try:
        if python and harness.run([command, "-c", ""], timeout_s=60).returncode == 0:
            return command
    except OSError:
        pass
    if python and not sys.version.startswith(f"{python}."):
        _say(f"there is no {command}: {sys.version.split()[0]} is used")
    return sys.executable


def constraints(torch: str) -> tuple[list[str], list[str]]:
    """Our pins that hold with a torch, and what is installed instead of the others."""
    have = tuple(int(number) for number in torch.split(".")[:2])
    instead = [one for below, names in OLDER.items() if have < below for one in names]
    free = {"torch", *(_name(one) for one in instead)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#") and _name(line) not in free]
    return pins, instead


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found[0].lower() if found else ""


def prepare(version: str, folder: Path) -> tuple[Path, str, str]:
    """The Python of an environment with this checkout, and its versions of torch and Python.

    Raises:
        CommandFailedError: the environment could not be made.
    """
    torch, _, python = version.partition("@")
    environment = folder / version
    command = environment / "bin" / "python"
    if not (environment / "pyvenv.cfg").exists():  # without it, its Python is the one it came from
        _say(f"{version}: making {environment}")
        harness.run([interpreter(python), "-m", "venv", environment]).expect()

    def install(*words: str) -> None:
        pip = [str(command), "-m", "pip", "--require-virtualenv", "install", "--quiet", *words]
        harness.run(pip, cwd=ROOT, timeout_s=7200).expect()

    install("--upgrade", requirement(torch))  # first: nothing else decides its version
    ask = "import platform, torch; print(torch.__version__, platform.python_version())"
    have, python = harness.run([command, "-c", ask]).expect().stdout.split()
    have = have.partition("+")[0]
    pins, instead = constraints(have)
    pinned = environment / "constraints.txt"
    pinned.write_text("\n".join([*pins, f"torch=={have}"]) + "\n", encoding="utf-8")
    install("-c", str(pinned), "-e", ".[test,bench]", *instead)
    return command, have, python


def tested(
    command: Path, tests: Sequence[str], without: Sequence[str], jobs: int
) -> tuple[int, tuple[str, ...] | None, int]:
    """Run tests: how many passed, names of those that failed, how many were skipped."""
    environment = command.parents[1]
    result = environment / "result.xml"
    result.unlink(missing_ok=True)
    words = [command, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal"]
    words += ["-m", " and ".join(f"not {one}" for one in without), f"--junitxml={result}", *tests]
    path = f"{command.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    with (environment / "tests.log").open("wb") as log:
        subprocess.run(words, cwd=ROOT, env=env, stdout=log, stderr=log, check=False)
    return counted(result)


def counted(result: Path) -> tuple[int, tuple[str, ...] | None, int]:
    """The sums of a JUnit file; a test that fails twice, in itself and after, counts once."""
    try:
        cases = list(ET.parse(result).iter("testcase"))
    except (OSError, ET.ParseError):
        return 0, None, 0
    names: dict[str, set[str]] = {}
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        names.setdefault(name, set()).update(child.tag for child in case)
    failed = tuple(name for name, tags in names.items() if tags & {"failure", "error"})
    skipped = sum("skipped" in tags for tags in names.values())
    return len(names) - len(failed) - skipped, failed, skipped


def commit() -> str:
    """The commit of this checkout; ``+`` if a file outside of the pages was changed."""
    git = ["git", "-C", str(ROOT)]
    short = harness.run([*git, "rev-parse", "--short=8", "HEAD"]).stdout.strip()
    changed = harness.run([*git, "status", "--porcelain", "--", ".", ":!docs"]).stdout.strip()
    return short + ("+" if changed else "")


def merged(page: str, rows: Iterable[Row]) -> str:
    """The page with these rows in its table, in the place of earlier ones of the same tests.

    Raises:
        ValueError: it has no such table.
    """
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no table between {BEGIN.strip()} and {END.strip()}")
    lines = [line.strip("|\n ").split(" | ") for line in table.splitlines()[2:] if line]
    kept = {tuple(cells[:3]): tuple(cells) for cells in lines}
    kept |= {row.cells()[:3]: row.cells() for row in rows}
    order = sorted(kept.values(), key=lambda row: (_numbers(row[0]), _numbers(row[1]), row[2]))
    head, *lines = [f"| {' | '.join(cells)} |\n" for cells in (HEADER, *order)]
    return "".join([before, BEGIN, head, "|---" * len(HEADER), "|\n", *lines, END, after])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("versions", nargs="*", help=f"default: {' '.join(ALL)}")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders and files of tests")
    parser.add_argument("--without", nargs="+", default=[], help="more markers to leave out")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions", help="of environments")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page with the table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = options_of(argv)
    without = [*LEFT_OUT, *options.without]
    tests = ", ".join([" ".join(options.tests), *(f"not {one}" for one in options.without)])
    status = 0
    for version in options.versions or ALL:
        at = commit()
        try:
            command, torch, python = prepare(version, options.folder.absolute())
        except harness.CommandFailedError as error:
            _say(f"{version}: {error}")
            status = 2
            continue
        passed, failed, skipped = tested(command, options.tests, without, options.jobs)
        date = time.strftime("%Y-%m-%d")
        row = Row(torch, python, tests, passed, failed, skipped, at, date)
        _say(
            "\n".join([*(f"{version}: failed: {name}" for name in failed or ()), str(row.cells())])
        )
        page = merged(options.page.read_text(encoding="utf-8"), [row])
        options.page.write_text(page, encoding="utf-8")  # at once: a run may take hours
        if failed != ():
            status = max(status, 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
