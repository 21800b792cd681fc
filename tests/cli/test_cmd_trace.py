"""traincheck trace: the overview tells what the run holds; events are chosen; exports are whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder, healthy_run
from traincheck.cli.main import main
from traincheck.schema.claims import BATCH_CONTENT, Needs, sampled
from traincheck.schema.events import CheckpointEvent, CollectiveEvent, Event
from traincheck.schema.invariant_file import needs_json
from traincheck.store.columnar import read_parquet
from traincheck.store.manifest import Manifest
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

Trace = Callable[..., tuple[int, str, str]]

MANIFEST = Manifest(
    run_id="mlp",
    command=("python", "train.py", "--epochs", "3"),
    started="2026-01-01T00:00:00.000+00:00",
    ended="2026-01-01T00:01:30.500+00:00",
    exit_status=1,
    settings={"level": "default", "every": 2, "needs": None},
    notes=("process 12 was not traced: it ignores PYTHONPATH",),
)


def events() -> list[Event]:
    builder = TraceBuilder().process(instruments={"amp": "off: AttributeError()", "rng": "on"})
    builder.seed(seed=42).model("Net", MLP_BN, buffers=BN_BUFFERS, frozen={"Net.fc1.bias"})
    builder.optimizer(lr=0.01).train().warning("UserWarning", "lr_scheduler before optimizer")
    builder.steps(4, eval_every=2, scheduler=True).skipped_steps(2).mark("dropped", records=3)
    tensor = {"dtype": "float32", "shape": [8, 4], "stats": {"min": 0.0}}
    tree = {"fc1": {"class": "Linear"}}
    builder.mark("given", inputs={"0": tensor}, modules=tree, ranks=[0, 1], sizes=[1] * 5)
    found = builder.step().build(last_complete=False)
    last = found[-1]
    head = (last.time_ns + 1, last.step, "checkpoint", 0, last.stream)
    found.append(CheckpointEvent(last.seq + 1, *head, op="save", path="model.pt"))
    found.append(CollectiveEvent(last.seq + 2, *head, op="all_reduce"))
    worker = TraceBuilder(pid=2000, worker=True).process(worker=True)
    return found + worker.build()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    with TraceWriter(directory, MANIFEST) as writer:
        for event in events():
            writer.emit(event)
    path = directory / "events-r0-p1000-t0.jsonl"
    path.write_bytes(path.read_bytes() + b"garbled\n" + b'{"k":"call","n":99')
    return directory


@pytest.fixture
def trace(capsys: pytest.CaptureFixture[str]) -> Trace:
    def call(*arguments: Any) -> tuple[int, str, str]:
        status = main(["trace", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


SHOWN = [
    "python train.py --epochs 3",
    "took 90.5 s",
    "with exit status 1",
    "every 2",
    "rank 0 pid 1000: train.py 1 thread; python 3.11.7, torch 2.13.0",
    "rank 0 pid 2000 (worker)",
    "rank 0: 6, 2 of them skipped by sampling, and an unfinished one",
    "by stage: train",
    "Net (__main__.Net): 1,056 parameters in 6 tensors, 1 of them frozen, 3 buffers",
    "opt0 torch.optim.adam.Adam made at train.py:40",
    "group 0: 6 tensors, lr 0.01 -> 0.006561",
    "loader0: 5 batches",
    "0 float32[64, 10], 1 int64[64]",
    "torch: 42",
    "all_reduce 1",
    "save model.pt",
    "UserWarning: lr_scheduler before optimizer (train.py:7)",
    "instrument amp: off: AttributeError()",
    "process 12 was not traced: it ignores PYTHONPATH",
    "dropped records=3",
    "inputs={0: float32[8, 4]}, modules=(1 entry), ranks=[0, 1], sizes=(5 entries)",
    "Skipped lines: 2",
    "events-r0-p1000-t0.jsonl:",
    "the last line is torn",
    "torch.nn.modules.linear.Linear.forward",
]


def test_the_overview_tells_of_steps_that_lost_events(trace: Trace, tmp_path: Path) -> None:
    manifest = replace(MANIFEST, settings={"every": 1})
    with TraceWriter(tmp_path / "run", manifest) as writer:
        for event in healthy_run(5):
            writer.emit(event)
    path = tmp_path / "run" / "events-r0-p1000-t0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[-5]
    path.write_bytes(b"".join(lines))
    _, out, _ = trace("show", tmp_path / "run")
    assert "rank 0: 5, 1 of them with events missing" in out
    assert "dropped records=1" in out


def test_the_overview_tells_what_the_run_holds(trace: Trace, run: Path) -> None:
    status, out, err = trace("show", run)
    assert (status, err) == (0, "")
    assert [text for text in SHOWN if text not in out] == []


def test_the_overview_tells_what_was_taken_in_some_steps(trace: Trace, tmp_path: Path) -> None:
    recorded = Needs(states=sampled("gradient@backward", BATCH_CONTENT), kinds=frozenset({"step"}))
    facts = {"recorded": needs_json(recorded), "some": [8, 7]}
    with TraceWriter(tmp_path / "run") as writer:
        for event in TraceBuilder().process(**facts).model().optimizer().steps(1).build():
            writer.emit(event)
    _, out, _ = trace("show", tmp_path / "run")
    assert "changes of variables, in steps other than the first 8 and each 7th" in out
    assert "fingerprints of batches, in steps other than the first 8 and each 7th" in out


def test_the_overview_of_a_plain_run_is_without_empty_sections(
    trace: Trace, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "run") as writer:
        for event in TraceBuilder().process().model().optimizer().steps(1).build():
            writer.emit(event)
    status, out, _ = trace("show", tmp_path / "run")
    assert status == 0
    for title in ("Not observed", "Warnings", "Checkpoints", "Collectives", "Skipped", "seeds"):
        assert title not in out


def test_the_overview_as_json_agrees_with_the_events(trace: Trace, run: Path) -> None:
    status, out, _ = trace("show", run, "--format", "json")
    assert status == 0
    found = json.loads(out)
    assert found["events"] == sum(found["kinds"].values()) == len(events())
    assert found["steps"] == [
        {"rank": 0, "steps": 6, "recorded": 4, "is_last_unfinished": True},
    ]
    forward = next(use for use in found["apis"] if use["api"] == "__main__.Net.forward")
    assert forward["calls"] == 7
    assert found["manifest"]["exit_status"] == 1
    assert found["seeds"] == [{"source": "torch", "seed": 42, "count": 1}]
    assert found["skipped_lines"] == 2
    assert found["optimizers"][0]["groups"][0]["parameters"] == 6


def test_without_a_manifest_it_says_so(trace: Trace, run: Path) -> None:
    (run / "manifest.json").unlink()
    status, out, _ = trace("show", run)
    assert status == 0
    assert "no manifest" in out
    assert "is missing" in out


CHOICES: list[tuple[list[str], Callable[[Event], bool]]] = [
    (["--events"], lambda e: True),
    (["--kind", "step", "--kind", "batch"], lambda e: e.kind in ("step", "batch")),
    (["--step", "2"], lambda e: e.step == 2),
    (["--rank", "3"], lambda e: False),
    (
        ["--api", "*zero_grad"],
        lambda e: e.kind == "call" and e.api.endswith("zero_grad"),  # type: ignore[union-attr]
    ),
    (
        ["--api", "torch.optim.Optimizer.step", "--step", "1"],
        lambda e: e.kind == "call" and e.api.endswith("Adam.step") and e.step == 1,  # type: ignore[union-attr]
    ),
    (
        ["--variable", "Net.fc1.weight"],
        lambda e: e.kind == "state" and e.name == "Net.fc1.weight",  # type: ignore[union-attr]
    ),
    (["--variable", "Net.fc1.*", "--kind", "call"], lambda e: False),
]


@pytest.mark.parametrize(("options", "chosen"), CHOICES)
def test_events_are_chosen(
    trace: Trace, run: Path, options: list[str], chosen: Callable[[Event], bool]
) -> None:
    expected = [event for event in TraceReader(run).events() if chosen(event)]
    status, out, _ = trace("show", run, *options, "--format", "json")
    assert status == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [(e["stream"], e["n"]) for e in found] == [(e.stream, e.seq) for e in expected]
    _, text, _ = trace("show", run, *options)
    assert len(text.splitlines()) == len(expected)


def test_an_event_line_names_where_and_what(trace: Trace, run: Path) -> None:
    _, out, _ = trace("show", run, "--api", "*Adam.step", "--step", "1")
    assert out.startswith("r0 p1000-t0 step 1 train call      torch.optim.adam.Adam.step {")
    assert '"where":"train.py:88"' in out


def test_an_export_holds_all_and_says_where(trace: Trace, run: Path, tmp_path: Path) -> None:
    status, out, err = trace("export", run, "-o", tmp_path / "out")
    assert (status, out) == (0, "")
    assert str(tmp_path / "out" / "calls.parquet") in err
    assert "skipped 2 unreadable lines" in err
    assert list(read_parquet(tmp_path / "out")) == list(TraceReader(run).events())


@pytest.mark.parametrize("command", [["show"], ["export", "-o", "out"]])
def test_what_is_no_run_is_refused_with_a_fix(
    trace: Trace, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "nope", tmp_path):
        status, out, err = trace(*command, path)
        assert (status, out) == (2, "")
        assert str(path) in err
        assert "fix:" in err
    assert not (tmp_path / "out").exists()


def test_an_export_into_a_file_is_refused(trace: Trace, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    status, _, err = trace("export", run, "-o", tmp_path / "file")
    assert status == 2
    assert "is a file" in err
    assert (tmp_path / "file").read_text() == "mine"
