"""The table of metrics holds what events hold, by name; both forms of a run have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import traincheck
from tests.builders import TraceBuilder
from traincheck.errors import UsageError
from traincheck.schema.events import Event, MetricsEvent
from traincheck.store.columnar import export_parquet
from traincheck.store.tables import METRIC_COLUMNS
from traincheck.store.writer import TraceWriter


def metrics(step: int, rank: int, **fields: Any) -> MetricsEvent:
    return MetricsEvent(0, 0, step, "train", rank, "", **fields)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks, whose first events name their numbers differently."""
    with TraceWriter(tmp_path / "run") as writer:
        for rank in range(2):
            events: list[Event] = TraceBuilder(rank=rank).process().build()
            first, second = ("0", "1") if rank == 0 else ("1", "0")
            names = {first: "gradient/Net.w", second: "entropy"}
            for step in range(3):
                event = metrics(
                    step, rank,
                    names=names if step == 0 else {},
                    combine={second: "max"} if step == 0 else {},
                    sums=[[int(first), 4, 2.0 + step, 9.0, -1.0, 3.0]],
                    values=[[int(second), 2.0, None if step == 1 else 0.5 + rank]],
                )  # fmt: skip
                last = events[-1]
                place = {"seq": last.seq + 1, "time_ns": last.time_ns + 1, "stream": last.stream}
                events.append(event.replace(**place))
            for event in events:
                writer.emit(event)
    return tmp_path / "run"


def test_a_row_is_a_name_a_step_and_a_process(run: Path, tmp_path: Path) -> None:
    frame = traincheck.open(run).metrics()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == METRIC_COLUMNS
    assert len(frame) == 3 * 2 * 2
    row = frame[(frame["name"] == "gradient/Net.w") & (frame["step"] == 2) & (frame["rank"] == 1)]
    cells = row.iloc[0]
    assert (cells["count"], cells["sum"], cells["squares"], cells["maximum"]) == (4, 4.0, 9.0, 3.0)
    assert cells["zeros"] is pd.NA
    entropy = frame[frame["name"] == "entropy"]
    assert set(entropy["combine"]) == {"max"}
    assert set(entropy.loc[entropy["step"] == 2, "value"]) == {0.5, 1.5}
    export_parquet(run, tmp_path / "parquet")
    pd.testing.assert_frame_equal(traincheck.open(tmp_path / "parquet").metrics(), frame)


def test_rows_are_chosen_though_names_stand_in_earlier_events(run: Path) -> None:
    opened = traincheck.open(run)
    frame = opened.metrics(steps=slice(2, None), name="gradient/*", rank=1)
    assert list(frame["step"]) == [2]
    assert list(frame["name"]) == ["gradient/Net.w"]
    assert opened.metrics(name=["entropy", "none"], steps=0)["rank"].tolist() == [0, 1]
    assert opened.metrics(steps=9).empty
    with pytest.raises(UsageError, match="name is"):
        opened.metrics(name=[])


def test_a_run_without_metrics_has_an_empty_table(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run") as writer:
        for event in TraceBuilder().process().build():
            writer.emit(event)
    frame = traincheck.open(tmp_path / "run").metrics()
    assert frame.empty
    assert list(frame.columns) == list(METRIC_COLUMNS)
