"""Our calls of the system, and programs that replace these functions, or their own image."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import traincheck.collect
from tests.collect.recording import read_folder, recording
from traincheck.collect.trace_writer import event_file
from traincheck.schema.layout import storage_notes
from traincheck.store.reader import TraceReader

MODULES = {"os": os, "time": time, "threading": threading}
FILES = ("open", "print", "input")
LAUNCHER = (
    "launcher.py", "run_manifest.py", "stop_program.py", "signals.py", "sitecustomize.py"
)  # fmt: skip


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps: int, pair: tuple[nn.Module, torch.optim.Optimizer] | None = None) -> None:
    model, optimizer = pair or made()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def replaced() -> dict[tuple[types.ModuleType, str], Callable[..., Any]]:
    """What a test of a program might replace, as it would: each function of these modules."""
    found = {
        (module, name): value
        for module in MODULES.values()
        for name, value in vars(module).items()
        if isinstance(value, (types.BuiltinFunctionType, types.FunctionType))
    }
    found |= {(builtins, name): getattr(builtins, name) for name in FILES}
    return found


def calls(steps: int) -> set[str]:
    """Which of these training calls, in this thread: others of a test process wait and wake."""
    met: set[str] = set()
    patches = []
    who, trains = threading.get_ident, threading.get_ident()
    train(1)  # what torch imports when it first trains, it imports with what it knows
    for (module, name), original in replaced().items():

        def counted(*args, _name=f"{module.__name__}.{name}", _original=original, **kwargs):
            if who() == trains:
                met.add(_name)
            return _original(*args, **kwargs)

        patches.append(mock.patch.object(module, name, counted))
    for patch in patches:
        patch.start()
    try:
        train(steps)
    finally:
        for patch in patches:
            patch.stop()
    return met


def test_a_program_that_counts_calls_of_the_system_counts_none_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")  # we look for a GPU where torch could use it
    plain = calls(3)
    with recording(tmp_path) as run:
        train(2)
        assert calls(150) == plain
    assert len(run.of("step")) == 153


def test_a_program_that_replaces_calls_of_the_system_is_recorded(tmp_path):
    """By what returns no number: a loop that waits for one would never end."""
    of_os = ("write", "open", "getpid", "fstat", "lseek", "fstatvfs")
    others = ("time.monotonic_ns", "time.monotonic", "builtins.open", "threading.get_ident")
    names = (*(f"os.{name}" for name in of_os), *others)
    with recording(tmp_path) as run:
        pair = made()
        train(1, pair)
        for name in names:
            with mock.patch(name):
                train(2, pair)
    assert len(run.of("step")) == 1 + 2 * len(names)


def test_functions_of_the_system_are_bound_at_import():
    """None is looked up in its module when it is called."""
    found = [
        f"{path.name}:{node.lineno} {ast.unparse(node.func)}"
        for path in Path(traincheck.collect.__file__).parent.rglob("*.py")
        if path.name not in LAUNCHER
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("os", "time", "threading", "signal")
    ]
    # Once, when the recording begins or is made
    once = {"os.register_at_fork", "threading.RLock"}
    assert [place for place in found if place.split()[1] not in once] == []


@pytest.mark.parametrize("count", [None, 0, -1, 1 << 40, 1.0, "1"], ids=repr)
def test_a_write_that_returns_no_count_ends_the_recording(tmp_path, monkeypatch, count):
    monkeypatch.setattr(event_file, "_can_map", lambda fd: False)
    with recording(tmp_path, must_be_whole=False) as run:
        train(1)
        with monkeypatch.context() as patch:
            patch.setattr(event_file, "_write", lambda fd, data: count)
            train(2)
        assert run.session.recording.on is False
    assert len(storage_notes(tmp_path)) == 1


def test_a_file_as_long_as_ours_in_the_place_of_ours_is_left_alone(tmp_path):
    with recording(tmp_path / "run") as run:
        train(2)
        fd = run.session.local.em.file.fd
        with open(tmp_path / "own", "wb+", buffering=0) as own:
            own.write(b"A" * os.fstat(fd).st_size)
            size = os.fstat(own.fileno()).st_size
            os.dup2(own.fileno(), fd)
            train(2)
    assert (tmp_path / "own").stat().st_size == size
    assert len(run.of("step")) == 4


PROGRAM = """
import os, sys, torch
from traincheck.collect.session import session
from traincheck.collect.launch.settings import Settings
session.start(Settings(directory=sys.argv[1], run_id="r"))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
torch.nn.functional.relu(torch.ones(1))
"""
ENDS = {
    "execv": "os.execv(sys.executable, [sys.executable, '-c', ''])",
    "execve": "os.execve(sys.executable, [sys.executable, '-c', ''], os.environ)",
    "execl": "os.execl(sys.executable, sys.executable, '-c', '')",
    "execvpe": "os.execvpe(sys.executable, [sys.executable, '-c', ''], os.environ)",
    "_exit": "os._exit(0)",
    "abort": "os.abort()",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_lost_where_a_program_ends_without_python(tmp_path, end):
    code = f"{PROGRAM}{ENDS[end]}\n"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (done.returncode == 0) is (end != "abort")
    events = read_folder(tmp_path)
    steps = [event for event in events if event.kind == "step"]
    assert [(event.step, event.complete) for event in steps] == [(0, True), (1, True), (2, True)]
    assert "torch.nn.functional.relu" in [event.api for event in events if event.kind == "call"]


def test_an_image_that_cannot_be_run_is_an_error_and_recording_goes_on(tmp_path):
    with recording(tmp_path) as run:
        train(2)
        with pytest.raises(FileNotFoundError):
            os.execv("/nowhere/at/all", ["all"])
        train(2)
    assert [event.step for event in run.of("step")] == [0, 1, 2, 3]
    assert os.execv.__module__ == "posix", "the original is back"


def test_the_next_image_writes_behind_the_first(tmp_path):
    """It has the same process id, and so the same file."""
    again = f"os.execv(sys.executable, [sys.executable, '-c', {PROGRAM!r}, sys.argv[1]])"
    subprocess.run([sys.executable, "-c", PROGRAM + again, str(tmp_path)], check=True)
    events = list(TraceReader(tmp_path).events())
    assert [event.step for event in events if event.kind == "step"] == [0, 1, 2] * 2
    assert not [event for event in events if getattr(event, "text", "") == "dropped"]
