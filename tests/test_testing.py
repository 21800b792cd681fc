"""`traincheck.testing`: assertions about recorded runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.diff.run_pairs import new_value, numbered, state, training, write
from traincheck.diff.library import diff
from traincheck.errors import TraceFormatError
from traincheck.report.difference.forms import write_text
from traincheck.testing import assert_runs_same


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of five steps; a parameter differs from step 3 on."""
    changed = new_value(training(), state("parameter", 3), norm=2.0001)
    return write(tmp_path / "a", training()), write(tmp_path / "b", changed)


def test_equal_runs_pass(tmp_path: Path) -> None:
    found = assert_runs_same(
        write(tmp_path / "a", training()), str(write(tmp_path / "b", training()))
    )
    assert found.same
    assert found.steps == 5


def test_the_message_is_the_text_of_the_report(runs: tuple[Path, Path]) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_runs_same(*runs)
    text = io.StringIO()
    write_text(diff(*runs), text)
    assert str(raised.value) == text.getvalue()
    assert "FIRST DIFFERENCE  step 3" in text.getvalue()
    assert "Net.fc1.weight" in text.getvalue()


def test_until_ends_before_a_step(runs: tuple[Path, Path]) -> None:
    assert assert_runs_same(*runs, until=3).steps == 3
    with pytest.raises(AssertionError, match="step 3"):
        assert_runs_same(*runs, until="4")


def test_other_options_are_those_of_diff(runs: tuple[Path, Path]) -> None:
    assert assert_runs_same(*runs, rtol=1e-3).closeness != "bit for bit"
    assert assert_runs_same(*runs, ignore=["Net.fc1.*"]).same


def test_runs_with_nothing_to_compare_fail(tmp_path: Path) -> None:
    events = numbered(event for event in training() if event.kind in ("mark", "stage"))
    a, b = write(tmp_path / "a", events), write(tmp_path / "b", events)
    with pytest.raises(AssertionError):
        assert_runs_same(a, b)


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    a = write(tmp_path / "a", training())
    with pytest.raises(TraceFormatError):
        assert_runs_same(a, tmp_path / "none")
