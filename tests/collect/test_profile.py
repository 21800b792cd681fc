"""Parts of the recorder of profiles: the window of steps, its settings, the mode, the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.collect.recording import recording
from tests.profile.networks import NETWORKS
from tests.profile.profiling import NEEDS, train
from traincheck.collect.launch.settings import Settings, from_env
from traincheck.collect.profile.clock import FORWARD, OVERHEAD, Timeline
from traincheck.collect.profile.operations import insert, remove
from traincheck.collect.steps.sampling import Window


class Passing(TorchFunctionMode):
    """Sees calls and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_window_of_steps() -> None:
    window = Window(9, 12)
    assert [step for step in range(20) if window.wants(step)] == [9, 10, 11, 12]
    assert window.skipped(0) == 9
    assert window.skipped(9) == 0
    assert window.skipped(13) > 1000
    assert not window.is_all


def test_settings_reach_the_program() -> None:
    for profile in (None, (10, 3)):
        settings = Settings(directory="/x", run_id="r", profile=profile)
        assert from_env(settings.to_env()) == settings


def test_only_the_window_and_the_step_before_are_recorded(tmp_path: Path) -> None:
    make, loss_of = NETWORKS["moe"]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path, needs=NEEDS, profile=(4, 2)) as run:
        train(model, optimizer, loss_of, 9)
    assert [event.step for event in run.of("profile")] == [4, 5]
    assert [event.step for event in run.of("step") if event.recorded] == [3, 4, 5]
    assert (tmp_path / "profiled").exists()


def test_a_mode_of_the_program_that_ends_leaves_ours() -> None:
    ours, theirs = Passing(), Passing()
    with theirs:
        insert(ours)
    torch.ones(1).exp()
    assert "exp" in ours.names
    assert "exp" not in theirs.names
    assert remove(ours)
    assert torch._C._len_torch_function_stack() == 0
    assert not remove(ours)


def test_ours_ends_and_leaves_a_mode_of_the_program() -> None:
    ours, theirs = Passing(), Passing()
    insert(ours)
    with theirs:
        assert remove(ours)
        torch.ones(1).exp()
    assert "exp" in theirs.names
    assert torch._C._len_torch_function_stack() == 0


def test_the_default_device_can_change_meanwhile() -> None:
    ours = Passing()
    torch.set_default_device("cpu")
    try:
        insert(ours)
        torch.set_default_device("meta")
        assert torch.ones(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"
    assert remove(ours)


def test_time_is_divided_without_a_rest() -> None:
    class Clock:
        name = "cpu"

        def __init__(self) -> None:
            self.now = 0

        def stamp(self) -> int:
            self.now += 10
            return self.now

        def read(self, stamps: list[int]) -> list[int]:
            return stamps

    timeline = Timeline(Clock())
    timeline.resume()
    timeline.pause()
    before = timeline.here
    call = timeline.enter(1, is_again=False)
    timeline.resume()
    timeline.pause()
    timeline.go(*before)
    times = timeline.times(lambda number: (1,) if number == call else ())
    assert times.own[1, FORWARD] == times.total[1, FORWARD] == 10
    assert times.phases[OVERHEAD] == 20
    assert sum(times.phases.values()) == 50


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_events_of_a_gpu_are_read_after_the_step(tmp_path: Path) -> None:
    make, loss_of = NETWORKS["reused"]
    model = make().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def on_device(given: Any) -> torch.Tensor:
        return loss_of(lambda x: given(x.cuda()))

    with recording(tmp_path, needs=NEEDS, profile=(1, 2)) as run:
        train(model, optimizer, on_device, 4)
    for event in run.of("profile"):
        assert event.clock == "cuda"
        assert event.phases["forward"] > 0
        assert event.memory["allocated"] > 0
