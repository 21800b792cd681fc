"""A run as pandas DataFrames: nothing is rounded; nothing is read or imported unasked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import traincheck
from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.errors import MissingDependencyError, TraceFormatError, UsageError
from traincheck.schema.events import CallEvent, Event
from traincheck.store import tables
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

METHODS = {"call": "calls", "state": "states", "step": "steps", "batch": "batches"}


def write(directory: Path, events: list[Event]) -> Path:
    with TraceWriter(directory) as writer:
        for event in events:
            writer.emit(event)
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    builder = TraceBuilder().process().model("Net", MLP_BN, buffers=BN_BUFFERS)
    builder.optimizer(betas=[0.9, 0.999]).train().steps(4, eval_every=2)
    builder.call("f", args={"flag": True, "none": None, "deep": {"a": [1, 0.5]}})
    return write(tmp_path / "run", builder.build())


@pytest.mark.parametrize("kind", METHODS)
def test_a_table_has_a_row_for_each_event_of_its_kind(run: Path, kind: str) -> None:
    events = [(i, e) for i, e in enumerate(TraceReader(run).events()) if e.kind == kind]
    frame = getattr(traincheck.open(run), METHODS[kind])()
    assert events
    assert list(frame["order"]) == [order for order, _ in events]
    for name in ("seq", "time_ns", "step", "stage"):
        told = [None if value is pd.NA else value for value in frame[name]]
        assert told == [getattr(event, name) for _, event in events], name


def test_nested_values_are_objects_and_shapes_are_tuples(run: Path) -> None:
    opened = traincheck.open(run)
    call = opened.calls(name="f").iloc[0]
    assert call["args"] == {"flag": True, "none": None, "deep": {"a": [1, 0.5]}}
    states = opened.states(name="Net.fc1.weight")
    assert states.loc[states["change"] == "new", "summary_shape"].iloc[0] == (32, 10)
    assert states.loc[states["change"] == "cleared", "summary_shape"].isna().all()


def test_no_number_is_rounded(tmp_path: Path, run: Path) -> None:
    last = list(TraceReader(run).events())[-1]
    large = CallEvent(*last.header, api="x", span=2**60 + 1)
    other = write(tmp_path / "other", [large, large.replace(seq=last.seq + 1, parent=2**60 + 3)])
    frame = traincheck.open(other).calls()
    assert list(frame["span"]) == [2**60 + 1] * 2
    assert frame["parent"].iloc[0] is pd.NA
    assert frame["parent"].iloc[1] == 2**60 + 3


@pytest.mark.parametrize(
    ("steps", "found"),
    [(None, {0, 1, 2, 3}), (2, {2}), (range(1, 3), {1, 2}), (range(0, 4, 2), {0, 2}), (9, set())],
)
def test_steps_are_chosen(run: Path, steps: range | int | None, found: set[int]) -> None:
    opened = traincheck.open(run)
    assert set(opened.steps(steps=steps)["step"]) == found
    calls = opened.calls(steps=steps)
    assert found <= set(calls["step"].dropna())
    if steps is not None:
        assert set(calls["step"]) <= found
        assert list(calls.columns) == list(opened.calls().columns)


def test_names_are_chosen_by_pattern(run: Path) -> None:
    opened = traincheck.open(run)
    fc1 = opened.states(name="Net.fc1.*")
    assert set(fc1.loc[fc1["role"] == "gradient", "name"]) == {"Net.fc1.weight", "Net.fc1.bias"}
    assert all(name.startswith("Net.fc1.") for name in fc1["name"])
    assert set(opened.calls(name="*zero_grad")["api"]) == {"torch.optim.adam.Adam.zero_grad"}
    assert set(opened.calls(name="Net.fc1")["module"]) == {"Net.fc1"}
    assert list(opened.batches(name="loader0")["step"]) == [0, 1, 2, 3]
    assert opened.batches(name="other").empty


def test_nothing_is_read_before_a_table_is_asked_for(run: Path, monkeypatch) -> None:
    reads, events = [], TraceReader.events
    monkeypatch.setattr(TraceReader, "events", lambda self: reads.append(1) or events(self))
    opened = traincheck.open(run)
    assert opened.path == run
    assert opened.manifest is not None
    assert opened.manifest.run_id == "run"
    assert not reads
    opened.steps()
    assert len(reads) == 1


def test_many_rows_are_put_together(run: Path, monkeypatch) -> None:
    whole = traincheck.open(run).calls()
    monkeypatch.setattr(tables, "ROW_GROUP", 3)
    pd.testing.assert_frame_equal(traincheck.open(run).calls(), whole)


def test_bad_input_is_an_error(run: Path, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(TraceFormatError):
        traincheck.open(tmp_path / "none")
    with pytest.raises(UsageError, match="'1:2', which is neither a range nor a number"):
        traincheck.open(run).calls(steps="1:2")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pandas and pyarrow"):
        traincheck.open(run).calls()


def test_a_star_import_leaves_open_as_it_is() -> None:
    assert "open" not in traincheck.__all__
    assert "open" in dir(traincheck)


def test_a_process_that_trains_loads_neither_pandas_nor_pyarrow(tmp_path: Path) -> None:
    out = tmp_path / "modules.json"
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys, torch, traincheck\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4)\n"
        "for x in loader:\n"
        "    optimizer.zero_grad()\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
        "torch.save(model.state_dict(), 'model.pt')\n"
        f"json.dump(sorted(sys.modules), open({str(out)!r}, 'w'))\n",
        encoding="utf-8",
    )
    argv = [sys.executable, "-m", "traincheck", "run", str(script)]
    subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    loaded = json.loads(out.read_text(encoding="utf-8"))
    assert "traincheck.collect.session.session" in loaded
    assert not {"pandas", "pyarrow", "traincheck.store.tables"} & set(loaded)
