"""A run as pandas DataFrames: nothing is rounded; nothing is read or imported unasked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

import traincheck
from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.errors import TraceFormatError, UsageError
from traincheck.schema.events import CallEvent, Event, StateEvent
from traincheck.schema.values import TensorSummary
from traincheck.store import columnar, tables
from traincheck.store.columnar import export_parquet, read_parquet
from traincheck.store.reader import TraceReader
from traincheck.store.row_choice import ROLES
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


def test_bad_input_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError):
        traincheck.open(tmp_path / "none")
    with pytest.raises(UsageError, match="'1:2', which is neither a range, a slice"):
        traincheck.open(run).calls(steps="1:2")  # type: ignore[arg-type]


def test_a_star_import_leaves_open_as_it_is() -> None:
    assert "open" not in traincheck.__all__
    assert "open" in dir(traincheck)


@pytest.mark.real_process
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


@pytest.fixture(params=["lines", "parquet"])
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], Path]:
    """A run in one of its two forms on disk."""

    def make(directory: Path) -> Path:
        if request.param == "lines":
            return directory
        export_parquet(directory, tmp_path / "parquet")
        return tmp_path / "parquet"

    return make


def cells(event: Event) -> dict[str, Any]:
    """The row that an event should be, from its fields alone."""
    row: dict[str, Any] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name == "summary":
            for part in TensorSummary.__struct_fields__:
                row[f"summary_{part}"] = None if value is None else getattr(value, part)
        else:
            row[name] = value
    return {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """A value as a table holds it: empty sequences are missing, records are lists."""
    if value == ():
        return None
    return orjson.loads(orjson.dumps(value, default=astuple))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            name: None if value is pd.NA or value is None else plain(value)
            for name, value in row.items()
            if name != "order"
        }
        for row in frame.to_dict("records")
    ]


def test_tables_are_what_the_reader_yields(run: Path, form: Callable[[Path], Path]) -> None:
    events = list(TraceReader(run).events())
    opened = traincheck.open(form(run))
    for kind in {event.kind for event in events}:
        frame = opened.table(kind)
        found = [(i, e) for i, e in enumerate(events) if e.kind == kind]
        assert list(frame["order"]) == [i for i, _ in found]
        assert rows_of(frame) == [cells(e) for _, e in found], kind
    assert opened.table("collective").empty
    assert list(opened.table("collective").columns)[:2] == ["order", "seq"]


STEPS = st.one_of(
    st.none(),
    st.integers(0, 6),
    st.builds(slice, st.none() | st.integers(0, 6), st.none() | st.integers(0, 6)),
    st.builds(range, st.integers(0, 6), st.integers(0, 6), st.sampled_from([1, 2, 3, -1, -2])),
)
NAMES = st.none() | st.sampled_from(
    ["*", "Net.*", "*.weight", "Net.fc1.bias", "none", ("Net.fc1.*", "*bias"), "?et.fc[12].*"]
)
ROLE = st.none() | st.sampled_from([*ROLES, ("parameter", "buffer")])
RANK = st.none() | st.sampled_from([0, 1, 2, (0, 1)])


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], list[Path]]:
    """A run of two ranks and a worker, in both forms, read in small batches."""
    folder = tmp_path_factory.mktemp("forms")
    events: list[Event] = []
    for rank in range(2):
        builder = TraceBuilder(rank=rank).process().model("Net", MLP_BN, buffers=BN_BUFFERS)
        events += builder.optimizer().train().steps(4, eval_every=2).build()
    run = write(folder / "run", events)
    export_parquet(run, folder / "parquet")
    return list(TraceReader(run).events()), [run, folder / "parquet"]


@settings(max_examples=60)
@given(steps=STEPS, name=NAMES, role=ROLE, rank=RANK)
def test_a_choice_is_that_of_a_loop_over_all_events(
    forms: tuple[list[Event], list[Path]], steps: Any, name: Any, role: Any, rank: Any
) -> None:
    def is_chosen(event: Any) -> bool:
        if isinstance(steps, slice):
            stop = 99 if steps.stop is None else steps.stop
            in_step = event.step is not None and (steps.start or 0) <= event.step < stop
        else:
            in_step = steps is None or event.step == steps or event.step in numbers
        return (
            in_step
            and (name is None or any(fnmatchcase(event.name, one) for one in as_list(name)))
            and (role is None or event.role in as_list(role))
            and (rank is None or event.rank in as_list(rank))
        )

    numbers = list(steps) if isinstance(steps, range) else []
    events, paths = forms
    wanted = [i for i, e in enumerate(events) if isinstance(e, StateEvent) and is_chosen(e)]
    for path in paths:
        frame = traincheck.open(path).states(steps=steps, name=name, role=role, rank=rank)
        assert list(frame["order"]) == wanted, path.name


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def test_the_forms_give_equal_frames(forms: tuple[list[Event], list[Path]]) -> None:
    lines, parquet = (traincheck.open(path) for path in forms[1])
    for method in METHODS.values():
        pd.testing.assert_frame_equal(getattr(lines, method)(), getattr(parquet, method)())


def test_row_groups_without_chosen_steps_are_not_read(
    run: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(columnar, "ROW_GROUP", 8)
    export_parquet(run, tmp_path / "parquet")
    read: list[Any] = []
    original = pq.ParquetFile.iter_batches

    def iter_batches(self: Any, size: int, row_groups: list[int], **kwargs: Any) -> Any:
        read.append((row_groups, self.num_row_groups))
        return original(self, size, row_groups=row_groups, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    opened = traincheck.open(tmp_path / "parquet")
    assert set(opened.calls(steps=3)["step"]) == {3}
    ((groups, count),) = read
    assert 0 < len(groups) < count / 2
    assert opened.calls(steps=90).empty


def test_arrow_is_read_as_it_is_asked_for(run: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 3)
    seen: list[Event] = []
    events = TraceReader.events

    def counted(self: TraceReader) -> Iterator[Event]:
        for event in events(self):
            seen.append(event)
            yield event

    monkeypatch.setattr(TraceReader, "events", counted)
    reader = traincheck.open(run).arrow("call")
    assert not seen
    first = next(iter(reader))
    assert len(first) == 3
    assert 0 < len(seen) < len(list(events(TraceReader(run))))
    assert reader.schema.names[0] == "order"


def test_an_older_export_lacks_columns(run: Path, tmp_path: Path) -> None:
    export_parquet(run, tmp_path / "parquet")
    whole = traincheck.open(tmp_path / "parquet").steps()
    path = tmp_path / "parquet" / "steps.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["recorded", "modes", "lr"]), path)
    frame = traincheck.open(tmp_path / "parquet").steps()
    assert list(frame.columns) == list(whole.columns)
    assert frame["recorded"].all()
    assert list(frame["lr"]) == [{}] * len(frame)
    assert len(list(read_parquet(tmp_path / "parquet"))) == len(list(TraceReader(run).events()))


def test_an_export_of_a_newer_version_or_a_foreign_file_is_an_error(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "parquet"
    export_parquet(run, folder)
    path = folder / "steps.parquet"
    table = pq.read_table(path)
    newer = {b"traincheck.schema_version": b"99"}
    pq.write_table(table.replace_schema_metadata(newer), path)
    with pytest.raises(TraceFormatError, match="schema version 99"):
        traincheck.open(folder).steps()
    pq.write_table(table.replace_schema_metadata(None), path)
    with pytest.raises(TraceFormatError, match="names no version"):
        traincheck.open(folder).steps()
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(TraceFormatError, match="not part of an exported trace"):
        traincheck.open(folder).steps()


def test_a_torn_and_a_growing_trace_are_read_as_far_as_they_go(run: Path) -> None:
    whole = traincheck.open(run).states()
    (path,) = run.glob("events-*.jsonl")
    content = path.read_bytes()
    (run / "manifest.json").unlink()
    path.write_bytes(content[: len(content) // 2])
    opened = traincheck.open(run)
    first = opened.states()
    assert opened.skipped == 1
    assert 0 < len(first) < len(whole)
    pd.testing.assert_frame_equal(first, whole.iloc[: len(first)])
    path.write_bytes(content)
    pd.testing.assert_frame_equal(opened.states(), whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": slice(-3, None)}, "neither a range"),
        ({"steps": slice(0, 4, 0)}, "neither a range"),
        ({"steps": True}, "neither a range"),
        ({"role": "gradients"}, "no role is called 'gradients'"),
        ({"name": []}, "name is"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": "0"}, "rank is"),
    ],
)
def test_unusable_arguments_are_errors(run: Path, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        traincheck.open(run).states(**arguments)


def test_kinds_without_names_or_roles_refuse_them(run: Path) -> None:
    opened = traincheck.open(run)
    with pytest.raises(UsageError, match="no kind of event is called 'steps'"):
        opened.table("steps")
    with pytest.raises(UsageError, match="'step' have no name"):
        opened.table("step", name="*")
    with pytest.raises(UsageError, match="'call' have no role"):
        opened.arrow("call", role="gradient")


def test_batches_that_were_read_are_not_kept(tmp_path: Path, monkeypatch) -> None:
    events = TraceBuilder().process().model("Net", MLP_BN).optimizer().train().steps(120).build()
    run = write(tmp_path / "run", events)
    monkeypatch.setattr(tables, "ROW_GROUP", 64)
    held: list[int] = []
    total = 0
    start = pa.total_allocated_bytes()
    for batch in traincheck.open(run).arrow("state"):
        total += batch.nbytes
        held.append(pa.total_allocated_bytes() - start)
    assert len(held) > 20
    assert max(held) < total / 4
