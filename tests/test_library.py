"""Building the shipped invariants: who they are of, what is left out, that order is no matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.library import GENERAL, PRESETS, broken, presets_of, write
from benchmarks.silent_bugs.case import clean_pipelines
from tests.builders import MLP, TraceBuilder, healthy_run
from tests.infer.test_statistics import without_zero_grad
from tests.learning import Recorded
from traincheck.infer.engine import Run, infer
from traincheck.schema.invariant_file import read_invariants


def run_of(name: str, events) -> Run:
    return Run(name=name, source=Recorded(events))


def program(name: str, **options) -> list:
    trace = TraceBuilder().process(argv0=f"{name}.py").model("Net", MLP).optimizer().train()
    return trace.steps(12, **options).build()


RUNS = [
    run_of("plain_digits", program("plain_digits")),
    run_of("ema", program("ema", eval_every=2)),
    run_of("accumulation", program("accumulation", accumulate=2)),
    run_of("warm_up_schedule", program("warm_up_schedule", scheduler=True)),
    run_of("plateau_tabular", program("plateau_tabular", scheduler=True)),
]


@pytest.fixture(scope="module")
def presets():
    result = infer(RUNS)
    return presets_of(result.invariants, result.statistics)


def texts(invariants) -> set[str]:
    return {one.text for one in invariants}


def test_a_preset_holds_what_its_pipelines_showed(presets) -> None:
    assert set(presets) == {*PRESETS, GENERAL}
    assert any("zero_grad" in text for text in texts(presets["accumulation"]))
    assert texts(presets[GENERAL])
    assert not any("LRScheduler" in text for text in texts(presets["accumulation"]))
    assert presets["lightning"] == []


def test_what_is_kept_to_a_program_is_not_shipped(presets) -> None:
    said = texts(presets[GENERAL])
    assert said
    assert not [text for text in said if ".py" in text]
    assert all(one.excerpt is None for one in presets[GENERAL])


def test_order_changes_no_byte(presets, tmp_path: Path) -> None:
    result = infer(RUNS[::-1])
    write(presets, tmp_path / "a")
    write(presets_of(result.invariants, result.statistics), tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert read_invariants(tmp_path / "a" / f"{GENERAL}.json") == presets[GENERAL]


def test_files_of_presets_that_are_no_more_are_removed(presets, tmp_path: Path) -> None:
    (tmp_path / "gone.json").write_text("{}")
    write(presets, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(presets)


def test_a_run_that_breaks_one_is_told(presets) -> None:
    assert broken(RUNS, presets) == []
    faults = broken([run_of("leaking", without_zero_grad())], presets)
    assert any(fault.startswith("leaking: ") and "zero_grad" in fault for fault in faults)
    assert broken([run_of("healthy", healthy_run(12))], presets) == []


def test_pipelines_of_presets_are_those_there_are() -> None:
    known = {script.stem for script in clean_pipelines()}
    assert {name for names in PRESETS.values() for name in names} <= known
