"""A trace as Parquet: nothing is lost, memory is bounded, a failed export leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder, healthy_run
from traincheck.errors import OutputError, TraceFormatError
from traincheck.schema.events import (
    CallEvent,
    CheckpointEvent,
    CollectiveEvent,
    Event,
    RngEvent,
    StateEvent,
)
from traincheck.schema.values import TensorSummary
from traincheck.store import columnar
from traincheck.store.columnar import export_parquet, file_name, read_parquet
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter


def write(directory: Path, events: list[Event]) -> Path:
    with TraceWriter(directory) as writer:
        for event in events:
            writer.emit(event)
    return directory


def rich_run() -> list[Event]:
    """A run with every kind of event, and values that are easily lost."""
    builder = TraceBuilder().process(empty={}, nested=[1, None, {"a": []}]).seed(seed=2**64 - 1)
    builder.model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer(betas=[0.9, 0.999]).train()
    builder.warning("UserWarning", "ünïcode \n line").steps(3, eval_every=2, scheduler=True)
    builder.call("f", args={"flag": True, "one": 1, "unit": 1.0, "none": None}, exception="E")
    events = builder.build()
    last = events[-1]
    head = (last.seq + 1, last.time_ns + 1, last.step, "checkpoint", 0, last.stream)
    value = TensorSummary("int64", (), value=True, zero=False)
    return [
        *events,
        CheckpointEvent(*head, op="load", missing=["a"], unexpected=[], changed=0),
        CollectiveEvent(*head, op="all_reduce", shape=[2, 0], dtype="bfloat16"),
        RngEvent(*head, source="numpy", seed=-1),
        StateEvent(*head, name="Net.x", summary=value, identity=2**62),
        StateEvent(*head, name="Net.x", change="cleared"),
    ]


@pytest.mark.parametrize("rows", [3, 20_000])
def test_nothing_is_lost(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "ROW_GROUP", max(rows, 10))
    run = write(tmp_path / "run", rich_run())
    read = list(TraceReader(run).events())
    counts = export_parquet(run, tmp_path / "out")
    assert counts == Counter(event.kind for event in read)
    found = list(read_parquet(tmp_path / "out"))
    assert found == read
    assert [repr(event) for event in found] == [repr(event) for event in read], "1 is not True"


def test_columns_can_be_asked_without_reading_json(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rich_run())
    export_parquet(run, tmp_path)
    states = pq.read_table(tmp_path / "states.parquet").to_pylist()
    weight = next(s for s in states if s["name"] == "Net.fc1.weight" and s["change"] == "new")
    assert (weight["summary_dtype"], weight["summary_shape"]) == ("float32", [32, 10])
    calls = pq.read_table(tmp_path / "calls.parquet", columns=["api", "order", "args"])
    assert calls.column("api").to_pylist().count("torch.optim.adam.Adam.step") == 3
    metadata = pq.read_schema(tmp_path / "calls.parquet").metadata
    assert metadata[b"traincheck.schema_version"] == b"1"
    compression = pq.ParquetFile(tmp_path / "calls.parquet").metadata.row_group(0).column(0)
    assert compression.compression == "ZSTD"


def test_ranks_keep_their_merged_order(tmp_path: Path) -> None:
    events = [
        event
        for rank in (0, 1)
        for event in TraceBuilder(rank=rank).process().model().optimizer().steps(2).build()
    ]
    run = write(tmp_path / "run", events)
    export_parquet(run, tmp_path / "out")
    assert list(read_parquet(tmp_path / "out")) == list(TraceReader(run).events())


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_parquet(write(tmp_path / "a", rich_run()), out)
    assert (out / file_name("warning")).exists()
    export_parquet(write(tmp_path / "b", healthy_run(1)), out)
    assert list(read_parquet(out)) == healthy_run(1)
    assert not list(out.glob("*.part"))


def test_a_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    run = write(tmp_path / "run", healthy_run(2))

    def fail(done: int) -> None:
        raise RuntimeError(done)

    with pytest.raises(RuntimeError):
        export_parquet(run, tmp_path / "out", progress=fail)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_line_with_a_number_that_does_not_fit_is_skipped(tmp_path: Path) -> None:
    events = healthy_run(1)
    run = TraceReader(write(tmp_path / "run", [*events, events[-1].replace(time_ns=2**63)]))
    assert sum(export_parquet(run, tmp_path / "out").values()) == len(events)
    assert run.skipped == 1


def test_nested_numbers_that_do_not_fit_are_text(tmp_path: Path) -> None:
    events = healthy_run(1)
    large = CallEvent(*events[-1].header, api="x", span=9, args={"n": 2**64, "deep": {"a": [1]}})
    run = write(tmp_path / "run", [*events, large.replace(seq=len(events))])
    file = next(run.glob("events-*"))
    file.write_bytes(file.read_bytes().replace(b"[1]", b"[" * 300 + b"]" * 300))
    export_parquet(run, tmp_path / "out")
    (found,) = (e for e in read_parquet(tmp_path / "out") if getattr(e, "api", "") == "x")
    assert found.args["n"] == str(2**64)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, small_disk: Path) -> None:
    run = write(tmp_path / "run", healthy_run(600))
    with pytest.raises(OutputError, match="No space left") as caught:
        export_parquet(run, small_disk / "out")
    assert str(small_disk / "out") in caught.value.message
    assert list((small_disk / "out").iterdir()) == []


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    export_parquet(write(tmp_path / "run", healthy_run(200)), tmp_path / "o", progress=told.append)
    assert told == sorted(told)
    assert told[-1] > 0


def test_bad_folders_are_errors(tmp_path: Path) -> None:
    run = write(tmp_path / "run", healthy_run(1))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write Parquet files"):
        export_parquet(run, tmp_path / "file")
    with pytest.raises(TraceFormatError, match="is not an exported trace"):
        list(read_parquet(run))
    (tmp_path / "calls.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TraceFormatError, match="is not part of an exported trace"):
        list(read_parquet(tmp_path))
