"""A signal handler of the program may run after each call that we make, and raise or train there.

Python runs handlers where calls return: there a profile function does what a handler would do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.collect.recording import recording
from traincheck.collect.instruments.optimizers import Optimizers
from traincheck.collect.session.session import Session
from traincheck.collect.trace_writer import event_file
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE, Emitter
from traincheck.schema.layout import EVENT_GLOB
from traincheck.store.reader import TraceReader

OURS = "/traincheck/collect/"


class Net(nn.Module):
    """What a step of it makes us look at: parameters, buffers, losses, activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.relu(self.norm(x)))


class Program:
    """A loop that can be left at any place and entered again."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = torch.randn(8, 4), torch.randint(0, 3, (8,))

    def step(self) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()


class Interruption:
    """Calls ``action`` where the ``place``-th call in code of ours has returned."""

    def __init__(self, action: Callable[[], None], place: int) -> None:
        self.action, self.left = action, place
        self.count = 0
        self.at = ""

    def __enter__(self) -> Interruption:
        sys.setprofile(self._met)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _met(self, frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if frame.f_code.co_flags & 0x20 or event == "c_call":  # where generators end nothing runs
            return
        if event in ("return", "c_return", "call") and (OURS in name or name == HIDDEN_FILE):
            self.count += 1
            self.left -= 1
            if self.left == -1:
                sys.setprofile(None)
                self.at = f"{frame.f_code.co_name}:{frame.f_lineno} {event} {arg!r:.80}"
                self.action()


def places(program: Program, most: int) -> range:
    """Places in a step, evenly spread."""
    with Interruption(lambda: None, -2) as found:
        program.step()
    assert found.count > 300, "the code of ours is not found any more"
    return range(0, found.count, -(-found.count // most) | 1)


@pytest.fixture(params=["mapped", "written"])
def way(request, monkeypatch) -> str:
    """How records come into their file."""
    if request.param == "written":
        monkeypatch.setattr(event_file, "_can_map", lambda fd: False)
    return request.param


def test_numbers_go_up_where_a_handler_records(tmp_path):
    """A record that it interrupts is numbered behind its own."""
    with recording(tmp_path) as run:
        main, other = Program(), Program()
        main.step()
        for place in places(main, 150):
            with Interruption(other.step, place):
                main.step()
    assert len(run.of("step")) > 150
    assert [e.seq for e in run.events] == list(range(len(run.events)))
    assert len({e.span for e in run.of("call")}) == len(run.of("call"))


def fill(em: Emitter) -> None:
    """Leave no space for a record in the memory of the file."""
    while em.file.fits(300):
        em.event("mark", {"text": "-" * 100})


def test_a_handler_that_writes_within_a_write_loses_and_doubles_nothing(tmp_path, way):
    """While the memory is full, and while it is changed for the next part of the file."""
    with recording(tmp_path) as run:
        em = run.session.emitter()
        for place in range(90):
            fill(em)
            with Interruption(em.flush, place):
                em.event("mark", {"text": f"{place}".rjust(300)})
                em.flush()
            fill(em)
            with Interruption(lambda n=place: em.event("mark", {"text": f"handler {n}"}), place):
                em.event("mark", {"text": "-" * 300})
                em.flush()
        em.flush(is_last=True)
        assert way == "mapped" or not em.file.left
    texts = [e.text.strip() for e in run.of("mark")]
    assert [text for text in texts if text.isdigit()] == [str(place) for place in range(90)]
    handled = [text for text in texts if text.startswith("handler")]
    assert len(handled) > 40
    assert len(handled) == len(set(handled))
    assert [e.seq for e in run.events] == list(range(len(run.events)))


def test_a_handler_that_raises_within_a_write_loses_no_record_before_it(tmp_path, way):
    with recording(tmp_path, must_be_whole=False) as run:
        em = run.session.emitter()
        for place in range(60):
            fill(em)
            em.event("mark", {"text": f"{place}"})
            with Interruption(raise_deadline, place), suppress(DeadlineError):
                em.event("mark", {"text": "-" * 300})
                em.flush(is_last=place % 3 == 0)
    texts = [e.text for e in run.of("mark") if e.text.isdigit()]
    assert texts == [str(place) for place in range(60)], way
    assert [e.seq for e in run.events] == list(range(len(run.events)))


def test_a_record_is_in_the_file_when_it_ends(tmp_path):
    """However large, and whatever was written before."""
    sizes = [10, 100, event_file.WINDOW, 50, event_file.LARGE, *range(2000, 9000, 700), 1, 2]
    with recording(tmp_path) as run:
        em = run.session.emitter()
        for count, size in enumerate(sizes, 1):
            em.event("mark", {"text": "x" * size})
            found = [e.text for e in TraceReader(tmp_path).events()][1:]
            assert [len(text) for text in found] == sizes[:count]
    (path,) = tmp_path.glob(EVENT_GLOB)
    assert b"\0" not in path.read_bytes()
    assert [e.seq for e in run.events] == list(range(len(run.events)))


class DeadlineError(TimeoutError):
    """What a handler of the program raises: of a class that we catch ourselves."""


def raise_deadline() -> None:
    raise DeadlineError("mine")


def state(session: Session) -> tuple[Any, ...]:
    """All that a call of ours changes and puts back."""
    em = session.local.em
    assert em is not None
    optimizers = next(i for i in session.installed if isinstance(i, Optimizers))
    return (
        em.busy, em.top, em.inner, em.module, em.modules, len(optimizers._stepping),
        session.steps.inside, session.clock.stage, session.recording.on, torch.is_grad_enabled(),
        torch._C._is_torch_function_enabled(), session.instruments,
    )  # fmt: skip


@pytest.mark.parametrize("every", [1, 3])
def test_an_exception_of_a_handler_reaches_the_program_and_leaves_nothing_behind(tmp_path, every):
    """Wherever it comes; and what follows is recorded as ever."""
    with recording(tmp_path, must_be_whole=False, every=every) as run:
        program = Program()
        program.step()
        calm = state(run.session)
        for place in places(program, 150):
            with Interruption(raise_deadline, place) as met:
                try:
                    program.step()
                except DeadlineError:
                    assert met.left < 0
                else:
                    assert met.left >= 0, f"swallowed at {met.at}"
            assert state(run.session)[:-4] == calm[:-4], met.at
            assert state(run.session)[-3:] == calm[-3:], met.at
        for _ in range(2 * every):
            program.step()
    assert not run.marks("fault")
    steps = [e.step for e in run.of("step") if e.recorded]
    last = [e for e in run.events if e.step == steps[-1]]
    assert {"call", "state", "step"} <= {e.kind for e in last}
    assert [e.seq for e in run.events] == list(range(len(run.events)))
