"""The benchmark of comparisons finds its difference, on a short trace."""

from __future__ import annotations

from pathlib import Path

from benchmarks.diff_speed import make_pair, measure


def test_the_benchmark_finds_the_difference_at_the_end(tmp_path: Path) -> None:
    found = measure(*make_pair(tmp_path, 3000))
    assert found["phase"] == "optimizer_state"
    assert int(found["step"]) > 10
