"""A run as a Perfetto file: tracks, slices, counters and flows are those of the trace."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.builders import TraceBuilder, healthy_run
from tests.collect.recording import recording
from tests.perfetto.reading import Timeline, read_timeline
from traincheck.cli.main import main
from traincheck.page.timeline import LOSS, RATE
from traincheck.perfetto.export import export_perfetto
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.torch_api import Families
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter


def written(events: list[Event], folder: Path) -> Path:
    with TraceWriter(folder) as writer:
        for event in events:
            writer.emit(event)
    return folder


def timeline(events: list[Event], tmp_path: Path) -> Timeline:
    run = written(events, tmp_path / "run")
    export_perfetto(TraceReader(run), tmp_path / "run.pftrace")
    return read_timeline(tmp_path / "run.pftrace")


def test_every_call_of_a_real_run_is_a_slice_inside_the_one_that_made_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with recording(tmp_path / "run") as run:
        net = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    export_perfetto(TraceReader(run.folder), tmp_path / "run.pftrace")
    found = read_timeline(tmp_path / "run.pftrace")
    slices = found.slices[found.track("rank 0", "main thread")]
    calls = {call.span: call for call in run.of("call")}
    depths = {}
    for call in calls.values():
        parent, depth = call.parent, 0
        while parent in calls:
            parent, depth = calls[parent].parent, depth + 1
        depths[call.module or call.api, call.start_ns] = depth
    assert {(s.name, s.begin): s.depth for s in slices} == depths
    assert max(depths.values()) >= 3
    assert all(one.begin <= one.end for one in slices)


def test_steps_are_slices_one_after_the_other(tmp_path: Path) -> None:
    events = TraceBuilder().process().model().optimizer().steps(3).skipped_steps(2).build()
    found = timeline(events, tmp_path)
    steps = found.slices[found.track("rank 0", "steps")]
    assert [step.name for step in steps] == [f"step {n}" for n in range(5)]
    assert [step.category for step in steps] == ["step"] * 3 + ["step not recorded"] * 2
    assert all(one.end <= other.begin for one, other in pairwise(steps))


def test_counters_are_the_numbers_of_the_trace(tmp_path: Path) -> None:
    builder = TraceBuilder().process().model().optimizer(lr=0.01)
    for value in (2.5, 1.25, 0.5):
        builder.begin_step().batch().zero_grad().forward("Net")
        builder.call(Families.BACKWARD, args={"tensors": {"value": value}})
        builder.optimizer_step().end_step()
    events = builder.build()
    found = timeline(events, tmp_path)
    loss = found.counters[found.track("rank 0", LOSS)]
    assert [value for _, value in loss] == [2.5, 1.25, 0.5]
    rates = [value for _, value in found.counters[found.track("rank 0", f"{RATE} opt0")]]
    assert rates == [e.lr["opt0"][0] for e in events if isinstance(e, StepEvent)]


def test_a_number_that_is_not_finite_is_a_mark(tmp_path: Path) -> None:
    builder = TraceBuilder().process().model().optimizer().begin_step().batch().forward("Net")
    builder.call(Families.BACKWARD, args={"tensors": {"value": "inf"}})
    found = timeline(builder.build(), tmp_path)
    assert [mark.name for mark in found.instants[found.track("rank 0", "steps")]] == [
        "loss is not finite"
    ]


def test_arrows_lead_from_each_backward_to_the_step_that_applies_it(tmp_path: Path) -> None:
    builder = TraceBuilder().process().model().optimizer()
    for _ in range(2):
        builder.begin_step().batch().zero_grad()
        builder.forward("Net").backward().forward("Net").backward().optimizer_step().end_step()
    found = timeline(builder.build(), tmp_path)
    slices = found.slices[found.track("rank 0", "main thread")]
    assert [s.flows for s in slices if s.category == "backward"] == [(1,), (2,), (3,), (4,)]
    assert [s.flows for s in slices if s.category == "optimizer"] == [(1, 2), (3, 4)]


def test_ranks_threads_and_workers_have_their_own_tracks(tmp_path: Path) -> None:
    ranks = [TraceBuilder(rank=r, pid=7).process().model().optimizer().steps(2) for r in (0, 1)]
    worker = TraceBuilder(pid=9, worker=True).process(worker=True).mark("note")
    thread = TraceBuilder(pid=7, thread=3).call("torch.relu")
    events = [e for b in (*ranks, worker, thread) for e in b.build()]
    found = timeline(events, tmp_path)
    assert {
        ("rank 0", "main thread"),
        ("rank 1", "main thread"),
        ("rank 0", "thread 3"),
        ("rank 0, loader worker", "main thread"),
    } <= set(found.tracks.values())


def test_what_happened_once_is_marked(tmp_path: Path) -> None:
    builder = TraceBuilder().process().model().optimizer().steps(1)
    builder.load("Net", path="a.pt").warning("UserWarning", "something").mark("reached here")
    found = timeline(builder.build(), tmp_path)
    names = [mark.name for mark in found.instants[found.track("rank 0", "main thread")]]
    assert names == [
        "batch 0",
        "checkpoint load_state_dict",
        "UserWarning: something",
        "reached here",
    ]


def test_an_unfinished_call_is_closed(tmp_path: Path) -> None:
    builder = TraceBuilder().process().model().optimizer().steps(1)
    builder.call("torch.relu", open=True, parent=10_000)
    found = timeline(builder.build(), tmp_path)
    last = found.slices[found.track("rank 0", "main thread")][-1]
    assert (last.name, last.details["open"]) == ("torch.relu", True)


def call_lines(number: int) -> Any:
    """Lines of a module with nine functions inside, over and over."""
    span = 0
    for index in range(number // 10):
        head = {"k": "call", "s": index // 100, "g": "train"}
        root = span
        span += 10
        at = 1_000_000 * (index + 1)
        for inner in range(9):
            begin = at + 1 + 100 * inner
            yield {
                **head,
                "t": begin + 50,
                "id": root + 1 + inner,
                "parent": root,
                "start": begin,
            } | {"api": "torch.nn.functional.linear"}
        yield {**head, "t": at + 2000, "id": root, "start": at} | {
            "api": "torch.nn.modules.linear.Linear.forward",
            "family": Families.MODULE,
            "module": f"Net.block{index % 50}",
            "root": True,
        }


def many_calls(folder: Path, number: int) -> Path:
    folder.mkdir()
    with (folder / "events-r0-p5-t0.jsonl").open("w") as file:
        for index, line in enumerate(call_lines(number)):
            file.write(json.dumps({**line, "n": index}) + "\n")
    return folder


EXPORT_BOTH = """
import re, sys
from pathlib import Path
from traincheck.perfetto.export import export_perfetto
from traincheck.store.reader import TraceReader

for run in sys.argv[1:]:
    slices = export_perfetto(TraceReader(run), Path(run) / "out.pftrace").slices
    print(slices, *re.findall(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()))
"""


@pytest.mark.real_process
def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    runs = [many_calls(tmp_path / f"run{number}", number) for number in (10_000, 60_000)]
    command = [sys.executable, "-c", EXPORT_BOTH, *map(str, runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (few, before_kb), (many, after_kb) = (
        map(int, line.split()) for line in done.stdout.splitlines()
    )
    assert (few, many) == (10_000, 60_000)
    assert after_kb - before_kb < 10_000
    assert after_kb < 100_000


def test_the_command_writes_a_file_or_into_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(healthy_run(2), tmp_path / "run")
    for target in ("new/run.pftrace", "."):
        options = ["--format", "perfetto", "-o", str(tmp_path / target)]
        assert main(["trace", "export", str(run), *options]) == 0
        assert "slices" in capsys.readouterr().err
    assert (tmp_path / "trace.pftrace").read_bytes() == (tmp_path / "new/run.pftrace").read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(healthy_run(2), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    options = ["--format", "perfetto", "-o", str(tmp_path / "x.pftrace")]
    assert main(["trace", "export", str(run), *options]) == 2
    assert "pip install 'traincheck[perfetto]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("*x.pftrace*"))
