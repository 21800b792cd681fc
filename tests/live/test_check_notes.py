"""What a live check has found is written while it goes on, seldom, and never at a cost to it."""

from __future__ import annotations

from pathlib import Path

from tests.builders import healthy_run
from tests.live.runs import BROKEN, checked_by
from traincheck.check.suppression.policy import read_baseline, write_baseline
from traincheck.live import checked
from traincheck.live.checked import read_checked
from traincheck.schema.events import StepEvent


def test_it_is_written_at_most_twice_a_second(tmp_path: Path) -> None:
    now = [0.0]
    engine, notes = checked_by([], tmp_path, clock=lambda: now[0])
    steps = []
    for event in healthy_run(20):
        engine.observe(event)
        if isinstance(event, StepEvent):
            now[0] += 0.125
            notes.step(event)
            found = read_checked(tmp_path)
            steps.append(found.step if found else None)
    assert steps == [0] * 4 + [4] * 4 + [8] * 4 + [12] * 4 + [16] * 4


def test_the_last_step_is_written_when_nothing_more_comes(tmp_path: Path) -> None:
    now = [0.0]
    _, notes = checked_by(healthy_run(3), tmp_path, clock=lambda: now[0])
    first = read_checked(tmp_path)
    now[0] = 1.0
    notes.tick()
    second = read_checked(tmp_path)
    assert first is not None
    assert second is not None
    assert (first.step, second.step) == (0, 2)


def test_the_end_is_written_with_what_the_report_has(tmp_path: Path) -> None:
    engine, notes = checked_by(BROKEN, tmp_path)
    notes.finish(engine.finish())
    found = read_checked(tmp_path)
    assert found is not None
    assert found.over
    assert (found.counts, found.summary["violated"]) == ({"error": 1}, 1)


def test_findings_of_the_baseline_are_left_out(tmp_path: Path) -> None:
    engine, _ = checked_by(BROKEN, tmp_path)
    write_baseline(tmp_path / "known.json", engine.so_far().findings)
    baseline = read_baseline(tmp_path / "known.json")
    checked_by(BROKEN, tmp_path, baseline=baseline)
    found = read_checked(tmp_path)
    assert found is not None
    assert (found.number("finding"), list(found.findings)) == (0, [])


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    checked_by(BROKEN, tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_failing_disk_ends_it(tmp_path: Path, monkeypatch) -> None:
    tries = []

    def refuse(*given: object) -> None:
        tries.append(given)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checked, "write_checked", refuse)
    now = iter(range(100))
    engine, _ = checked_by(BROKEN, tmp_path, clock=lambda: next(now))
    assert len(tries) == 1
    assert engine.so_far().findings
