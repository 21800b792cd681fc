"""The life of a recording: its files at the end, after a fork, in threads, on a full disk."""

from __future__ import annotations

import _thread
import errno
import fcntl
import importlib.util
import os
import resource
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import read_folder, recording
from traincheck.collect.launch import run_manifest
from traincheck.collect.observers.import_hook import ImportHook
from traincheck.collect.trace_writer import event_file
from traincheck.collect.trace_writer.event_file import reserved
from traincheck.schema.claims import Needs
from traincheck.schema.layout import EVENT_GLOB, storage_notes
from traincheck.schema.torch_api import Families
from traincheck.store.reader import TraceReader


def train(steps, model=None, optimizer=None):
    model = model or nn.Linear(2, 1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_the_first_record_says_who_writes(tmp_path):
    with recording(tmp_path) as run:
        F.relu(torch.ones(1))
    first = run.events[0]
    assert (first.kind, first.text, first.seq) == ("mark", "process", 0)
    assert first.data["pid"] == os.getpid()
    assert first.data["torch"] == torch.__version__
    assert first.data["level"] == "default"
    assert first.data["recorded"] is None
    assert set(first.data["instruments"].values()) == {"on"}


def test_a_selective_view_says_what_it_holds(tmp_path):
    needs = Needs(calls=frozenset({"torch.nn.functional.relu"}), states=frozenset({"gradient@*"}))
    with recording(tmp_path, needs=needs) as run:
        train(1)
    recorded = run.events[0].data["recorded"]
    assert recorded["calls"] == ["torch.nn.functional.relu"]
    assert recorded["states"] == ["gradient@*"]
    assert {e.role for e in run.of("state") if e.change != "new"} == {"gradient"}


def test_numbers_and_times_go_up(tmp_path):
    with recording(tmp_path) as run:
        train(3)
    assert [e.seq for e in run.events] == list(range(len(run.events)))
    times = [e.time_ns for e in run.events]
    assert times == sorted(times)
    assert len({e.span for e in run.of("call")}) == len(run.of("call"))


@pytest.mark.parametrize(("closed", "complete"), [(True, True), (False, False)])
def test_the_last_step(tmp_path, closed, complete):
    """Whole when its update was made; a step that the end cut short is no evidence."""
    with recording(tmp_path) as run:
        model, optimizer = train(2)
        if not closed:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
    steps = run.of("step")
    assert [e.step for e in steps] == list(range(2 if closed else 3))
    assert steps[-1].complete is complete
    assert all(e.complete for e in steps[:-1])


def test_after_the_end_nothing_is_recorded(tmp_path):
    with recording(tmp_path) as run:
        model, optimizer = train(1)
    count = len(run.events)
    train(2, model, optimizer)
    assert len(read_folder(tmp_path)) == count


def test_a_fork_writes_a_file_of_its_own(tmp_path):
    with recording(tmp_path) as run:
        F.relu(torch.ones(1))
        pid = os.fork()
        if not pid:
            F.relu(torch.ones(2))
            os._exit(0)
        os.waitpid(pid, 0)
        F.relu(torch.ones(3))
    relus = {}
    for event in run.calls("torch.nn.functional.relu"):
        relus.setdefault(event.stream, []).append(event.args["input"]["shape"])
    assert sorted(relus.values()) == [[[1], [3]], [[2]]]
    assert len(run.marks("process")) == 2
    parents = [m.data["parent_pid"] for m in run.marks("process") if m.data["pid"] == pid]
    assert parents == [os.getpid()]


def test_a_forked_process_does_not_end_the_step_that_its_parent_is_in(tmp_path):
    with recording(tmp_path) as run:
        train(2)
        pid = os.fork()
        if not pid:
            F.relu(torch.ones(2))  # as workers of a pool
            os._exit(0)
        os.waitpid(pid, 0)
        train(1)
    assert len(run.calls("torch.nn.functional.relu")) == 1
    assert [event.step for event in run.of("step")] == [0, 1, 2]


def test_threads_write_files_of_their_own(tmp_path):
    together = threading.Barrier(4)

    def work() -> None:
        F.relu(torch.ones(1))
        together.wait(20)
        for _ in range(199):
            F.relu(torch.ones(1))

    with recording(tmp_path) as run:
        F.relu(torch.ones(1))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(tmp_path.glob(EVENT_GLOB))) == 5
    relus = run.calls("torch.nn.functional.relu")
    assert len(relus) == 801
    assert len({e.span for e in relus}) == 801
    for stream in {e.stream for e in run.events}:
        numbers = [e.seq for e in run.events if e.stream == stream]
        assert numbers == list(range(len(numbers)))


def _of_threading(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _of_c(work):
    """As one of C++: for ``threading`` it lives for ever."""
    done = threading.Event()

    def run():
        work()
        threading.current_thread()
        done.set()

    before = _thread._count()
    _thread.start_new_thread(run, ())
    assert done.wait(20)
    while _thread._count() > before:
        time.sleep(0.001)


@pytest.mark.parametrize("start", [_of_threading, _of_c])
def test_a_thread_goes_on_with_the_file_of_one_that_has_ended(tmp_path, start):
    """A loop that evaluates in a new thread each time: descriptors would run out."""
    with recording(tmp_path) as run:

        def work():
            F.relu(torch.ones(1))
            em = run.session.local.em
            em.top, em.inner, em.busy = 7, em, True  # as one that ended within a call

        F.relu(torch.ones(1))
        fds = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            start(work)
        F.relu(torch.ones(1))
        assert len(list(run.session._emitters)) == 2
        assert len(os.listdir("/proc/self/fd")) <= fds + 2
    assert len(list(tmp_path.glob(EVENT_GLOB))) == 2
    relus = run.calls("torch.nn.functional.relu")
    assert len(relus) == len({e.span for e in relus}) == 32
    assert all(e.parent is None for e in relus)
    for stream in {e.stream for e in run.events}:
        numbers = [e.seq for e in run.events if e.stream == stream]
        assert numbers == list(range(len(numbers)))


def test_a_program_without_a_descriptor_left_is_told_of(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with recording(tmp_path, must_be_whole=False):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            F.relu(torch.ones(1))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(storage_notes(tmp_path)) == 1


@pytest.mark.parametrize(
    ("is_mapped", "room"), [(False, 0), (False, 5_000), (True, 0), (True, event_file.WINDOW)]
)
def test_a_disk_that_is_full_ends_the_recording_only(tmp_path, monkeypatch, is_mapped, room):
    """What is missing is counted; what comes after a torn record can still be read."""
    plain = [p.tolist() for p in seeded_training().parameters()]
    write, left = os.write, [0 if is_mapped else room]

    def full(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(fd, data[: left[0]])
        left[0] -= count
        return count

    def reserve(fd, start, size):
        if start + size > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        event_file_reserve(fd, start, size)

    event_file_reserve = event_file._fallocate
    if not is_mapped:
        monkeypatch.setattr(event_file, "_can_map", lambda fd: False)
    with recording(tmp_path, must_be_whole=False) as run:
        with monkeypatch.context() as patch:
            patch.setattr(event_file, "_write", full)
            patch.setattr(event_file, "_fallocate", reserve)
            assert [p.tolist() for p in seeded_training().parameters()] == plain
            assert run.session.recording.on is False
        train(3)  # there is room again, but what would follow the gap is no use
    (mark,) = run.marks("dropped")
    assert mark.data["records"] > 0
    assert run.events[-1] is mark
    recorded = [e.recorded for e in run.of("step")]
    assert recorded == sorted(recorded, reverse=True), "after the gap steps are only counted"
    assert recorded[-1] is False
    assert bool(run.of("call")) is bool(room)
    (note,) = storage_notes(tmp_path)  # also where the file ends exactly behind a record
    assert str(os.getpid()) in note
    assert note in TraceReader(tmp_path).notes
    assert note in run_manifest.ended({"notes": []}, tmp_path, 0)["notes"]


@pytest.mark.parametrize("left", [100_000, 2_000_000_000, None], ids=["low", "room", "unknown"])
def test_the_last_room_on_a_disk_is_not_for_records(tmp_path, monkeypatch, left):
    """What others write counts too. A disk that tells nothing of its size is written to."""
    ask, disk = os.fstatvfs, []

    def asked(fd):
        disk.append(fd)
        found = list(ask(fd))
        found[1:5] = [1, 0 if left is None else 1 << 40, 1 << 40, left or 0]
        return os.statvfs_result(found)

    monkeypatch.setattr(event_file, "_fstatvfs", asked)
    with recording(tmp_path, must_be_whole=False) as run:
        train(20)
    is_low = left == 100_000
    assert len(run.of("step")) == (0 if is_low else 20)
    assert ["nearly full" in note for note in storage_notes(tmp_path)] == [True] * is_low
    assert is_low or len(disk) < 20, "asked each few megabytes, or seconds"


@pytest.mark.parametrize(
    ("total", "left"),
    [(200 << 10, 100 << 10), (1 << 30, 64 << 20), (10 << 30, 512 << 20), (1 << 42, 1 << 30)],
)
def test_how_much_is_left_on_a_disk(total, left):
    assert reserved(total) // 1024 == left // 1024


def test_a_whole_trace_has_no_such_note(tmp_path):
    with recording(tmp_path):
        train(2)
    assert storage_notes(tmp_path) == []
    assert not any("full disk" in note for note in TraceReader(tmp_path).notes)


def seeded_training():
    torch.manual_seed(0)
    return train(30)[0]


def test_writes_go_on_after_a_short_write(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(event_file, "_can_map", lambda fd: False)
    with recording(tmp_path) as run, monkeypatch.context() as patch:
        patch.setattr(event_file, "_write", lambda fd, data: write(fd, data[:100]))
        train(5)
    assert [e.step for e in run.of("step")] == [0, 1, 2, 3, 4]
    assert [e.seq for e in run.events] == list(range(len(run.events)))


def test_what_is_written_survives_a_kill(tmp_path):
    """Each record is in the file when it ends, also those of a step that has not ended."""
    code = (
        "import os, signal, sys, torch\n"
        "from traincheck.collect.session import session\n"
        "from traincheck.collect.launch.settings import Settings\n"
        "session.start(Settings(directory=sys.argv[1], run_id='r'))\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(4):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    reader = TraceReader(tmp_path)
    events = list(reader.events())
    assert [e.step for e in events if e.kind == "step"] == [0, 1, 2]
    assert [e.step for e in events if getattr(e, "family", "") == Families.OPTIMIZER_STEP][-1] == 3
    assert reader.skipped == 0
    (process,) = run_manifest.find_processes(tmp_path)
    path = tmp_path / process["files"][0]
    assert process["bytes"] == len(path.read_bytes().rstrip(b"\0"))


def test_an_argument_that_is_no_text_loses_one_record_only(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["caf\udce9.py"])
    with recording(tmp_path, must_be_whole=False) as run:
        F.relu(torch.ones(1))
    assert len(run.calls("torch.nn.functional.relu")) == 1


def test_a_finder_of_imports_can_be_removed_twice():
    finder = ImportHook(lambda name: False, lambda module: None, lambda action, error: None)
    finder.install()
    assert finder in sys.meta_path
    finder.remove()
    finder.remove()
    assert finder not in sys.meta_path


def test_a_finder_of_imports_that_fails_leaves_the_import_as_it_is():
    def covers(name):
        raise ValueError(name)

    faults = []
    finder = ImportHook(covers, lambda module: None, lambda source, error: faults.append(error))
    finder.install()
    try:
        assert importlib.util.find_spec("not_there") is None
    finally:
        finder.remove()
    assert [str(error) for error in faults] == ["not_there"]


def test_every_instrument_can_be_removed_twice(tmp_path):
    """One that failed too often is out before the session ends."""
    with recording(tmp_path / "run") as run:
        for instrument in run.session.installed:
            instrument.remove()
    assert run.session.installed == []


def test_space_is_cut_off_only_where_nobody_writes(tmp_path):
    """A process that goes on after its launcher may have closed all descriptors, and its lock."""
    own = tmp_path / f"events-r0-p{os.getpid()}-t0.jsonl"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    others = tmp_path / f"events-r0-p{gone.pid}-t0.jsonl"
    for path in (own, others):
        path.write_bytes(b"{}\n" + bytes(100))
    manifest = run_manifest.ended({"notes": []}, tmp_path, 0)
    assert [process["bytes"] for process in manifest["processes"]] == [3, 3]
    assert (own.stat().st_size, others.stat().st_size) == (103, 3)
    others.write_bytes(b"{}\n" + bytes(100))
    with others.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        run_manifest.ended({"notes": []}, tmp_path, 0)
        assert others.stat().st_size == 103
