"""Real programs that run twice are the same: two recordings of each kind, in the view "diff"."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diff_reruns import KINDS, Line, measure
from tests.diff.run_pairs import new_value, state, training, write
from traincheck.diff.library import diff

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    return list(measure(tmp_path_factory.mktemp("reruns"), 2, jobs=2, views=["diff"]))


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_of_a_program_are_the_same(lines: list[Line], kind: str) -> None:
    found = [line for line in lines if line.kind == kind]
    assert [line.what for line in found] == ["reruns", "ranks"][: 1 + (kind == "ranks")]
    for line in found:
        assert line.broken == []
        assert line.values > 500
        assert line.unknown == 0
    assert found[0].notes == []


def test_a_difference_is_counted(tmp_path: Path) -> None:
    a = write(tmp_path / "a", training())
    b = write(tmp_path / "b", new_value(training(), state("parameter", 2)))
    line = Line("kind", "diff", "reruns", 2)
    line.add(diff(a, b))
    line.add(diff(a, a))
    assert len(line.broken) == 1
    assert "step 2" in line.broken[0]
