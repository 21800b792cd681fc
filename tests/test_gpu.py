"""`make gpu`: every part is tried here on the CPU, and what fails there is told in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_page, gpu_parts, gpu_setup, harness
from benchmarks.gpu_parts import PARTS, RunOptions
from benchmarks.gpu_setup import Setup

MACHINE = {"cores": 2, "python": "3.11", "torch": "2.13.0"}


@pytest.fixture
def ready(monkeypatch):
    """Nothing needs to be installed."""
    setup = Setup(Path(sys.executable), {"torch": "2.13.0"})
    monkeypatch.setattr(gpu_setup, "prepare", lambda folder, progress: setup)


def test_without_a_device_all_parts_are_skipped(tmp_path, monkeypatch, capsys, ready):
    monkeypatch.setattr(gpu, "has_device", lambda python: None)
    before = (harness.ROOT / "docs" / "cuda.md").read_bytes()
    assert gpu.main(["--work", str(tmp_path / "work")]) == 0
    said = capsys.readouterr()
    assert all(f"{name}: skipped" in said.err for name in PARTS)
    assert "no CUDA device" in said.out
    assert (harness.ROOT / "docs" / "cuda.md").read_bytes() == before


def test_a_part_that_fails_or_hangs_stops_no_other_one(tmp_path, monkeypatch, ready):
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ncase $4 in tests) sleep 60;; bits) echo broken >&2; exit 3;; esac\n"
    )
    program.chmod(0o755)
    options = RunOptions(tmp_path, str(program))
    hung = gpu.run_part("tests", options, str(program), 0.3)
    assert (hung.status, hung.reason) == ("failed", "not done after 0 s")
    broken = gpu.run_part("bits", options, str(program), 60)
    assert (broken.status, broken.reason) == ("failed", "broken")
    assert gpu.run_part("waits", options, str(program), 60).status == "ok"


def test_late_parts_are_left_out_when_no_time_is_left(tmp_path, monkeypatch, ready):
    monkeypatch.setattr(gpu, "has_device", lambda python: "GPU")
    out, work = tmp_path / "out", tmp_path / "work"
    assert gpu.main(["--work", str(work), "--out", str(out), "--deadline", "1"]) == 0
    page = (out / "cuda.md").read_text(encoding="utf-8")
    assert page.count("only 1 s were left") == len(PARTS)


def test_the_environment_runs_this_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_setup, "_installed", lambda python, progress: Setup(python, {}))
    setup = gpu_setup.prepare(tmp_path / "venv", progress=print)
    done = harness.run([setup.python.with_name("traincheck-collect"), "--help"], cwd=tmp_path)
    assert "Usage: traincheck-collect" in done.expect().stdout
    ask = [setup.python, "-c", "import traincheck.cli as cli; print(cli.__file__)"]
    assert Path(harness.run(ask, cwd=tmp_path).stdout.strip()).resolve().parents[1] == harness.ROOT


def test_without_an_index_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(gpu_setup, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(gpu_setup, "TORCH", "no_such_torch")
    said = []
    setup = gpu_setup._installed(Path(sys.executable), said.append)
    assert "missing no_such_package: pip install failed (" in setup.problems[0]
    assert said[0] == "installing no_such_package"


def test_pins_are_those_of_the_project():
    assert gpu_setup._pinned("click").startswith("click==")
    assert gpu_setup._pinned("no_such_package") == "no_such_package"
    assert gpu_setup.TORCH in (harness.ROOT / "Makefile").read_text(encoding="utf-8")


def test_ratios_are_taken_lap_by_lap_without_the_first():
    found = gpu_parts._Overhead("cnn")
    plain = {"wall": [9.0, 1.0, 2.0, 4.0], "params": 5, "peak_mb": 1.2}
    recorded = {"wall": [99.0, 1.5, 3.0, 6.0], "params": 5, "peak_mb": 2.7}
    found.add({"plain": plain, "default": recorded})
    figures = found.figures()
    assert figures["ratios"]["default"]["median"] == 1.5
    assert figures["peak_mb"] == {"plain": 1, "default": 3}
    parts = {"overhead-cnn": {"status": "ok", "seconds": 3.0, **figures}}
    result = {"device": "GPU", "is_dry_run": False, "date": "2026-01-01", "machine": MACHINE}
    page = gpu_page.page({**result, "problems": ["missing pytest"], "parts": parts})
    assert "| cnn | 0.0 M | 2000.00 | - | 1.500 (1.500-1.500) | - | - | - | 1 |" in page
    assert "missing pytest" in page
    assert "dry run" not in page


def test_bits_are_compared_only_where_the_plain_program_repeats_itself():
    runs = {"cnn, plain": "a", "cnn, again": "a", "cnn, default": "a", "cnn, rules": "b"}
    runs |= {"gpt, plain": "a", "gpt, again": "c", "gpt, rules": "a"}
    assert gpu_parts._compared(runs) == {
        "cnn, default": True, "cnn, rules": False, "gpt, rules": None
    }  # fmt: skip


def test_a_part_runs_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "MODELS", ("cnn",))
    monkeypatch.setattr(gpu_parts, "RECORDED", ("rules",))
    options = RunOptions(tmp_path, sys.executable, on_cpu=True, seconds=300, part="waits")
    assert PARTS["waits"].run(options) == {"faults": {"cnn, rules": []}}


def test_a_fault_of_the_recorder_fails_the_part(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_parts, "MODELS", ("cnn",))
    monkeypatch.setattr(gpu_parts, "RECORDED", ("rules",))
    mark = '{"k":"mark","text":"fault","data":{"error":"synchronizing"}}'

    def record(self, out, env, **options):
        out.mkdir()
        (out / "events-r0-p1-t1.jsonl").write_text(mark + "\n", encoding="utf-8")

    monkeypatch.setattr(RunOptions, "record", record)
    found = PARTS["waits"].run(RunOptions(tmp_path, sys.executable, on_cpu=True, part="waits"))
    assert found["failed"] == "cnn, rules: raised where torch forbids to wait"
