"""The benchmark of overhead: what a ratio is taken of, and programs that take turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.overhead import PROGRAMS, SETTLE, Bench, Program
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
    times = one._take_turns({"plain": one._plain, "again": one._plain, "default": one._ours})
    assert {name: len(seconds) for name, seconds in times.items()} == dict.fromkeys(
        ("plain", "again", "default"), 9
    )
    assert list(tmp_path.glob("default-1/events-*.jsonl"))


def test_digits_of_the_programs_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    for ours, theirs in zip(load_digits(), datasets.load_digits(return_X_y=True), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
