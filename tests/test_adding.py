"""The pages on how to add something are performed, step by step, in a copy of the repository.

A page is data. A line that is nothing but a path in backquotes and a colon names the file of the
block below it: a whole file, or a diff whose lines with a plus go behind the line in front of them
(or in front of the one behind them) and whose lines with a minus go. The lines of a console block
are run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"^(?:`(?P<path>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").glob("adding-*.md"))
    if "```console" in path.read_text(encoding="utf-8")
}
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Step:
    """One block of a page."""

    path: str
    kind: str
    text: str


def steps(page: str) -> list[Step]:
    """The blocks of a page that are to be performed, in order."""
    found = [Step(m["path"] or "", m["kind"], m["text"]) for m in _BLOCK.finditer(PAGES[page])]
    return [step for step in found if step.path or step.kind == "console"]


def patched(text: str, diff: str) -> str:
    """A file after a diff without line numbers; each line of the file that it names is there once.

    Raises:
        AssertionError: it is not.
    """
    lines, at = text.splitlines(), None
    changes = [(line[:1], line[1:]) for line in diff.splitlines()]
    for index, (sign, line) in enumerate(changes):
        if sign == "+":
            if at is None:
                at = lines.index(next(later for mark, later in changes[index:] if mark != "+"))
            lines.insert(at, line)
            at += 1
        else:
            assert lines.count(line) == 1, f"{lines.count(line)} lines are {line!r}"
            at = lines.index(line) + (sign != "-")
            if sign == "-":
                del lines[lines.index(line)]
    return "\n".join(lines) + "\n"


def copied(folder: Path) -> Path:
    """A copy of what the repository tracks, without the history and the benchmarks' results."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # In a checkout it is mapped into the package by the installation, which is of the original.
    (folder / "traincheck" / "cli").symlink_to(folder / "cli")
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one line of a console block in the copy."""
    program, *words = shlex.split(command)
    assert program == "python"
    return subprocess.run(
        [sys.executable, *words, "-p", "no:cacheprovider", "-q"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def perform(page: str, folder: Path, *, without: Step | None = None) -> list[str]:
    """Perform a page, but for one step, until a command fails; the output of that command."""
    for step in steps(page):
        path = folder / step.path
        if step == without:
            continue
        if step.kind == "console":
            for line in step.text.splitlines():
                result = run(line.removeprefix("$ "), folder)
                if result.returncode:
                    return [f"{line}\n{result.stdout[-3000:]}{result.stderr[-2000:]}"]
        elif step.kind == "diff":
            path.write_text(patched(path.read_text("utf-8"), step.text), encoding="utf-8")
        else:
            assert not path.exists(), f"{step.path} exists already"
            path.parent.mkdir(exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
    return []


def test_the_pages_have_steps() -> None:
    assert {"adding-a-relation", "adding-a-rule", "adding-an-instrument"} <= set(PAGES)
    assert {"adding-a-command", "adding-a-report-format", "adding-an-observation"} <= set(PAGES)
    assert {"adding-a-probe", "adding-a-quantity", "adding-a-section", "adding-a-device"} <= set(
        PAGES
    )
    assert all(len(steps(page)) >= 3 for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_its_steps_do_what_it_says(page: str, tmp_path: Path) -> None:
    assert perform(page, copied(tmp_path)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_without_a_row_of_a_table_they_do_not(page: str, tmp_path: Path) -> None:
    row = [step for step in steps(page) if step.kind == "diff"][-1]
    assert perform(page, copied(tmp_path), without=row) != []


def test_a_diff_goes_where_its_lines_are() -> None:
    assert patched("a\nb\nc\n", " a\n+x\n-c\n+d\n") == "a\nx\nb\nd\n"
    assert patched("a\nb\n", "+x\n b\n+y\n") == "a\nx\nb\ny\n"
    with pytest.raises(AssertionError, match="0 lines are 'z'"):
        patched("a\n", " z\n+x\n")
