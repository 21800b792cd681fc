"""The benchmark of overhead: what a ratio is taken of, and programs that take turns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness, overhead
from benchmarks.checkout import Checkout, checkout_at
from benchmarks.harness import CommandFailedError
from benchmarks.overhead import PROGRAMS, SETTLE, Bench, Program, rises
from benchmarks.workloads.digits import load_digits

MLP = next(program for program in PROGRAMS if program.letter == "a")


def bench(folder: Path, **changes: int) -> Bench:
    program: Program = replace(MLP, **changes)
    return Bench(program=program, folder=folder, peer=None)


def test_a_lap_is_compared_with_the_same_lap(tmp_path: Path) -> None:
    one = bench(tmp_path, turn=4, cold=1)
    base = [1.0] * 4 + [3.0] * 4 + [2.0] * 4  # the machine slows down for a while
    assert one._ratio([1.5 * seconds for seconds in base], base) == 1.5
    assert one._ratio(base, base) == 1.0


def test_what_comes_first_in_a_turn_does_not_count(tmp_path: Path) -> None:
    one = bench(tmp_path, turn=4, cold=1)
    base = [1.0] * 12
    cold = [9.0 if step % 4 == 0 or step < SETTLE else 1.2 for step in range(12)]
    assert one._ratio(cold, base) == pytest.approx(1.2)
    assert one._ratio(cold, base, among=frozenset({4, 5, 8})) == pytest.approx(1.2)


def test_no_turn_is_as_long_as_what_repeats(tmp_path: Path) -> None:
    """Else the same step of an epoch, or of sampling, would never count."""
    assert all(program.turn % 10 and program.steps >= 3 * program.turn for program in PROGRAMS)
    assert all(program.cold < program.turn for program in PROGRAMS)


def test_programs_that_take_turns_all_come_to_their_end(tmp_path: Path) -> None:
    one = bench(tmp_path, steps=9, turn=2)
    ours = partial(one._ours, tool=Checkout())
    times = one._take_turns({"plain": one._plain, "again": one._plain, "default": ours})
    assert {name: len(seconds) for name, seconds in times.items()} == dict.fromkeys(
        ("plain", "again", "default"), 9
    )
    assert list(tmp_path.glob("default-1/events-*.jsonl"))


def other_checkout(folder: Path) -> Path:
    """A checkout of a version whose collect command only prints its name."""
    (folder / "cli").mkdir(parents=True)
    (folder / "traincheck").mkdir()
    (folder / "traincheck" / "__init__.py").touch()
    (folder / "cli" / "__init__.py").touch()
    (folder / "cli" / "main.py").write_text(
        "def collect_main():\n    print('the other one')\n", encoding="utf-8"
    )
    return folder


def test_a_checkout_is_measured_without_being_installed(tmp_path: Path) -> None:
    home = other_checkout(tmp_path / "other")
    other = checkout_at(home, tmp_path / "linked")
    assert other.describe(tmp_path) == {"package": str(home), "commit": None}
    done = harness.collect(tmp_path / "no.py", tmp_path / "out", env=other.env, python=other.python)
    assert done.stdout == "the other one\n"


def test_what_is_no_version_of_traincheck_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match="neither a Python interpreter nor a checkout"):
        checkout_at(tmp_path, tmp_path / "linked")
    without_cli = other_checkout(tmp_path / "other")
    (without_cli / "cli").rename(without_cli / "commands")
    with pytest.raises(CommandFailedError):
        checkout_at(without_cli, tmp_path / "linked").describe(tmp_path)


def test_both_versions_record_each_kind_side_by_side(tmp_path: Path) -> None:
    one = replace(bench(tmp_path), versions={"before ": Checkout(python="old"), "": Checkout()})
    names = list(one._recorded())
    assert names[:4] == ["before default", "default", "before selective", "selective"]
    one.runs = 1
    assert list(one._recorded())[:2] == ["default", "before default"]
    assert one._recorded()["before rules"].keywords["tool"].python == "old"


@pytest.mark.parametrize(("letter", "rise", "within"), [
    ("a", 0.09, True), ("a", 0.11, False), ("b", 0.01, True), ("d", 0.03, False), ("d", -1, True),
])  # fmt: skip
def test_a_version_may_cost_only_a_little_more(tmp_path, letter, rise, within) -> None:
    program = next(program for program in PROGRAMS if program.letter == letter)
    one = Bench(program=program, folder=tmp_path, peer=None)
    for kind in overhead.RISING:
        one.ratios |= {f"before {kind}": [1.5, 2.0, 1.0], kind: [1.5 + rise, 9.0, 1.0 + rise]}
    assert {row["recording"] for row in rises(one)} == {"default", "selective", "rules", "skipped"}
    assert all(row["within"] is within for row in rises(one))


def test_digits_of_the_programs_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    for ours, theirs in zip(load_digits(), datasets.load_digits(return_X_y=True), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
