"""traincheck.watch: what it sees of a loop in this process, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import traincheck
from tests.collect.recording import read_folder, recording
from traincheck.check.run_overview import suspects
from traincheck.collect.active_session import CURRENT
from traincheck.errors import LaunchError, OutputError, UsageError
from traincheck.integrations import watching
from traincheck.integrations.watching import Watch

ORIGINALS: dict[str, Callable[[], Any]] = {
    "Module.__call__": lambda: nn.Module.__call__,
    "Module.__init__": lambda: nn.Module.__init__,
    "backward": lambda: torch.autograd.backward,
    "Optimizer.zero_grad": lambda: torch.optim.Optimizer.zero_grad,
    "relu": lambda: nn.functional.relu,
    "DataLoader.__iter__": lambda: DataLoader.__iter__,
    "os._exit": lambda: os._exit,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch.manual_seed(0)
    before = {name: get() for name, get in ORIGINALS.items()}
    yield
    assert CURRENT.session is None
    assert CURRENT.watch is None
    for name, get in ORIGINALS.items():
        assert get() is before[name], name


def loop(net: nn.Module, optimizer: Any, steps: int = 4, *, broken: bool = False) -> None:
    for _ in range(steps):
        if not broken:
            optimizer.zero_grad()
        x = torch.randn(8, 4)
        nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def codes(run: Watch) -> list[tuple[str, int | None]]:
    return [(f.code, f.first_step) for f in run.findings if f.severity != "info"]


def made() -> tuple[Net, Adam]:
    net = Net()
    return net, Adam(net.parameters())


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_loop_that_exists_already(steps_before, scheduled) -> None:
    """A scheduler puts another step on the optimizer: the earlier step of the class."""
    for broken in (False, True):
        net, optimizer = made()
        scheduler = StepLR(optimizer, 2) if scheduled else None
        loop(net, optimizer, steps_before)
        with traincheck.watch(net, optimizer) as run:
            loop(net, optimizer, 4, broken=broken)
        assert codes(run) == ([("TC201", 1)] if broken else [])
        report = run.report()
        assert report.steps == 4
        assert ("step" in vars(optimizer)) is (scheduler is not None)


def test_what_is_made_inside_is_seen() -> None:
    with traincheck.watch() as run:
        net = Net()
        optimizer = SGD(net.fc2.parameters(), lr=0.1)
        loop(net, optimizer)
    assert ("TC101", 0) in codes(run)


def test_optimizers_of_a_model_are_found() -> None:
    net, optimizer = made()
    other = Adam(Net().parameters())
    with traincheck.watch(net) as run:
        assert CURRENT.session is not None
        assert [o for _, o in CURRENT.session.live.live_optimizers()] == [optimizer]
        loop(net, optimizer, broken=True)
    assert codes(run) == [("TC201", 1)]
    assert other is not optimizer


def test_a_cell_that_is_run_twice() -> None:
    for _ in range(2):
        net, optimizer = made()
        with traincheck.watch([net, {"optimizer": optimizer}]) as run:
            loop(net, optimizer, broken=True)
        assert codes(run) == [("TC201", 1)]


def test_findings_are_logged_when_their_step_has_ended(caplog) -> None:
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        loop(net, optimizer, 2, broken=True)
        assert not caplog.records
        loop(net, optimizer, 1, broken=True)
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert record.name == "traincheck"
        assert "step 1: TC201 error" in record.getMessage()
        assert "fix: Call optimizer.zero_grad()" in record.getMessage()
        assert codes(run) == [("TC201", 1)]
        loop(net, optimizer, 2, broken=True)
    assert len(caplog.records) == 1
    assert "ERROR TC201" in str(run)


def test_training_is_bit_identical() -> None:
    def trained(watch: bool) -> list[bytes]:
        torch.manual_seed(1)
        net, optimizer = made()
        run = traincheck.watch(net, optimizer)
        if watch:
            run.start()
        loop(net, optimizer)
        run.stop()
        draw = torch.rand(1)
        return [t.detach().numpy().tobytes() for t in (*net.parameters(), draw)]

    assert trained(watch=True) == trained(watch=False)


def test_models_and_optimizers_can_be_copied_and_pickled_meanwhile() -> None:
    net, optimizer = made()
    StepLR(optimizer, 2)
    with traincheck.watch(net, optimizer):
        loop(net, optimizer, 2)
        copied = copy.deepcopy((net, optimizer))
        stored = pickle.dumps((net, optimizer))
    for found, held in (copied, pickle.loads(stored)):
        loop(found, held)
        assert isinstance(held, Adam)
        assert all(torch.isfinite(p).all() for p in found.parameters())


def test_what_was_made_inside_lives_on_outside() -> None:
    """A scheduler keeps the step that it found, ours; it must do nothing of ours any more."""
    with traincheck.watch(output=None) as run:
        net, optimizer = made()
        scheduler = StepLR(optimizer, 2)
        loop(net, optimizer)
    steps = run.report().steps
    loop(net, optimizer, broken=True)
    scheduler.step()
    assert run.report().steps == steps
    assert codes(run) == []
    with traincheck.watch(net, optimizer) as again:
        loop(net, optimizer, broken=True)
    assert codes(again) == [("TC201", 1)]


def test_an_exception_passes_and_ends_the_watch() -> None:
    net, optimizer = made()
    run = traincheck.watch(net, optimizer)

    def train() -> None:
        with run:
            loop(net, optimizer, broken=True)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()
    assert codes(run) == [("TC201", 1)]
    assert not run.is_active


def test_a_watch_that_is_printed_says_what_is_known() -> None:
    net, optimizer = made()
    run = traincheck.watch(net, optimizer)
    assert repr(run) == "<traincheck: nothing was watched yet>"
    with run:
        loop(net, optimizer, broken=True)
        assert re.fullmatch(r"<traincheck: .* held over \d+ steps, and watching>", repr(run))
    assert re.fullmatch(r"<traincheck: 1 finding; \d+ checks held over \d+ steps>", repr(run))


def test_a_watch_within_a_watch_joins_it() -> None:
    net, optimizer = made()
    other, second = made()
    with traincheck.watch(net, optimizer) as outer:
        with traincheck.watch(other, second) as inner:
            loop(other, second, broken=True)
            assert inner.is_active
        assert not inner.is_active
        assert outer.is_active
        loop(net, optimizer)
    assert ("TC201", 1) in codes(outer)
    assert [f.code for f in inner.findings] == ["TC201"]


def test_where_a_launcher_records_it_leaves_the_process_alone(tmp_path) -> None:
    net, optimizer = made()
    with recording(tmp_path), traincheck.watch(net, optimizer) as run:
        session = CURRENT.session
        loop(net, optimizer, broken=True)
        assert CURRENT.session is session
    assert codes(run) == []
    assert not run.is_active
    assert "the launcher records this process" in str(run)


class TestDecorator:
    def test_bare(self) -> None:
        @traincheck.watch
        def train(steps: int) -> str:
            """Trains."""
            net, optimizer = made()
            loop(net, optimizer, steps, broken=True)
            return "done"

        assert train(3) == "done"
        assert train.__doc__ == "Trains."
        assert codes(train.run) == [("TC201", 1)]  # type: ignore[attr-defined]

    def test_with_options_and_arguments(self) -> None:
        @traincheck.watch(ignore=["TC201"])
        def train(net: nn.Module, *, optimizer: Any) -> None:
            loop(net, optimizer, broken=True)

        net, optimizer = made()
        for _ in range(2):
            train(net, optimizer=optimizer)
            assert codes(train.run) == []  # type: ignore[attr-defined]
            assert train.run.report().steps == 4  # type: ignore[attr-defined]

    def test_what_does_not_train_in_its_call_is_refused(self) -> None:
        async def train() -> None: ...

        with pytest.raises(UsageError, match="cannot be watched"):
            traincheck.watch(every=2)(train)


def recorded(folder: Path) -> list[int]:
    return [e.step for e in read_folder(folder) if e.kind == "step" and e.recorded]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"every": 3}, [0, 3, 6]),
        ({"every": 4, "warmup": 2}, [0, 1, 4]),
        ({"limit": 2}, [0, 1]),
        ({"every": 2, "limit": 2}, [0, 2]),
        ({"limit": 0}, []),
    ],
)
def test_which_steps_are_checked(tmp_path, options, steps) -> None:
    net, optimizer = made()
    with traincheck.watch(net, optimizer, output=tmp_path / "run", **options) as run:
        loop(net, optimizer, 8)
    assert recorded(tmp_path / "run") == steps
    assert codes(run) == []


def test_the_next_step_can_be_asked_for(tmp_path) -> None:
    net, optimizer = made()
    with traincheck.watch(net, optimizer, output=tmp_path / "run", limit=1) as run:
        loop(net, optimizer, 3)
        run.check_next_step()
        loop(net, optimizer, 3)
    assert recorded(tmp_path / "run") == [0, 3]
    assert codes(run) == []


def test_no_step_can_be_asked_for_before_the_watch_begins() -> None:
    run = traincheck.watch(*made())
    with pytest.raises(UsageError, match="nothing is watched yet"):
        run.check_next_step()
    with run:
        pass
    run.check_next_step()  # too late: nothing happens


def test_the_user_says_where_steps_end(tmp_path) -> None:
    """Two optimizer steps are one of the user's here, as no counting could know."""
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        traincheck.step()
        for _ in range(3):
            loop(net, optimizer, 2)
            traincheck.step()
    assert run.report().steps == 3
    traincheck.step()  # nothing is watched: nothing happens


def test_a_trace_is_kept_only_on_demand(tmp_path, monkeypatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    net, optimizer = made()
    with traincheck.watch(net, optimizer):
        loop(net, optimizer)
        assert list((tmp_path / "tmp").iterdir())
    assert not list((tmp_path / "tmp").iterdir())
    with traincheck.watch(net, optimizer, output=tmp_path / "run"):
        loop(net, optimizer)
    assert recorded(tmp_path / "run") == [0, 1, 2, 3]
    with pytest.raises(OutputError, match="already holds a trace"):
        traincheck.watch(net, optimizer, output=tmp_path / "run").start()


def test_what_was_checked_takes_no_room(tmp_path, monkeypatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(watching, "_FILE_BYTES", 5000)
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        for _ in range(10):
            loop(net, optimizer, 5)
            (file,) = tmp_path.glob("*/events-*")
            assert len(file.read_bytes().rstrip(b"\0")) < 20_000
        loop(net, optimizer, 5, broken=True)
    assert codes(run) == [("TC201", 50)]
    assert run.report().steps == 55
    assert run.report().skipped_lines == 0


def test_a_broken_check_does_not_reach_training(monkeypatch, caplog) -> None:
    from traincheck.check.run_overview import RunOverview

    def fails(*_: object) -> None:
        raise ValueError("we got it wrong")

    monkeypatch.setattr(RunOverview, "add", fails)
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        loop(net, optimizer)
    assert "checking stopped with ValueError: we got it wrong" in run.report().notes
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_interrupt_while_checking_ends_the_checking(monkeypatch) -> None:
    """What was being read is lost, and what is absent must prove nothing."""
    from traincheck.check.run_overview import RunOverview

    real = RunOverview.add

    def interrupted(self: RunOverview, event: Any) -> None:
        if event.kind == "call" and event.step == 2:
            raise KeyboardInterrupt
        real(self, event)

    monkeypatch.setattr(RunOverview, "add", interrupted)
    net, optimizer = made()
    run = traincheck.watch(net, optimizer)
    with pytest.raises(KeyboardInterrupt), run:
        loop(net, optimizer)
    assert "checking stopped with KeyboardInterrupt" in run.report().notes
    assert codes(run) == []
    assert run.report().steps == 2


def test_a_start_that_fails_does_not_reach_training(monkeypatch, caplog) -> None:
    from traincheck.collect.session import attach

    def fails(*_: object) -> None:
        raise ValueError("we got it wrong")

    monkeypatch.setattr(attach, "attach", fails)
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        loop(net, optimizer)
        assert not run.is_active
    assert list(run.report().notes) == ["nothing was watched: ValueError: we got it wrong"]
    assert "we got it wrong" in caplog.text


class TestHalt:
    """TC201 is an error that the end of step 1 shows."""

    def saved(self, folder: Path, *, broken: bool, save_at: int) -> list[int]:
        """The steps whose checkpoints were written."""
        net, optimizer = made()
        with traincheck.watch(net, optimizer, halt=True):
            for step in range(4):
                try:
                    loop(net, optimizer, 1, broken=broken)
                except Exception:  # as programs do that go on with the next batch
                    continue
                if step >= save_at:
                    torch.save(net.state_dict(), folder / f"{step}.pt")
        return sorted(int(path.stem) for path in folder.glob("*.pt"))

    @pytest.mark.parametrize("save_at", [0, 1, 4])
    def test_training_ends_before_the_next_checkpoint(self, tmp_path, save_at) -> None:
        with pytest.raises(traincheck.TrainingHalted, match="at step 1: TC201 error: "):
            self.saved(tmp_path, broken=True, save_at=save_at)
        assert [path.stem for path in tmp_path.glob("*.pt")] == ["0"] * (save_at == 0)

    def test_a_healthy_training_saves_as_always(self, tmp_path) -> None:
        assert self.saved(tmp_path, broken=False, save_at=0) == [0, 1, 2, 3]


def test_without_halt_the_checkpoints_are_named(tmp_path) -> None:
    net, optimizer = made()
    with traincheck.watch(net, optimizer) as run:
        for step in range(3):
            loop(net, optimizer, 1, broken=True)
            torch.save(net.state_dict(), tmp_path / f"{step}.pt")
    assert [(save.path, save.step) for save in suspects(run.report())] == [
        (str(tmp_path / f"{step}.pt"), step) for step in (1, 2)
    ]


def test_a_loader_with_workers() -> None:
    net, optimizer = made()
    data = DataLoader(TensorDataset(torch.randn(8, 4)), 2, num_workers=1)
    with traincheck.watch(net, optimizer) as run:
        for (x,) in data:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
    assert run.report().steps == 4
    assert run.report().ranks == 1
    assert codes(run) == []


def test_in_a_thread() -> None:
    found: list[Watch] = []

    def work() -> None:
        net, optimizer = made()
        with traincheck.watch(net, optimizer) as run:
            loop(net, optimizer, broken=True)
        found.append(run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes(found[0]) == [("TC201", 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval": 10}, "did you mean every?"),
        ({"evry": 2}, "did you mean every"),
        ({"every": 0}, "make it 1 or more"),
        ({"limit": -1}, "make it 0 or more"),
        ({"select": "TC1"}, "one string"),
        ({"select": ["TC999"]}, "did you mean"),
    ],
)
def test_options_that_cannot_be_used_are_told(options, said) -> None:
    with pytest.raises(UsageError) as error, traincheck.watch(**options):
        pass
    assert said in str(error.value)


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(UsageError, match="a Tensor cannot be watched"):
        traincheck.watch(torch.ones(1)).start()
    run = traincheck.watch()
    with pytest.raises(UsageError, match="nothing was watched"):
        run.report()
    run.stop()
    with run, pytest.raises(UsageError, match="begun already"):
        run.start()


def test_another_system_is_refused_before_anything_is_replaced(monkeypatch) -> None:
    forward = nn.Module.__call__
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(LaunchError, match="on Linux only; this system is win32"):
        traincheck.watch(nn.Linear(2, 1)).start()
    assert nn.Module.__call__ is forward
