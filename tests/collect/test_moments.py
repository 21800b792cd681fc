"""Torch is replaced in one place each: no function of torch is wrapped by two modules of ours."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import Recording, recording
from traincheck.collect.moments import replacements
from traincheck.collect.moments.calls import Calls
from traincheck.collect.moments.moment import Around, Moment
from traincheck.collect.profile.recorder import ProfileRecorder
from traincheck.collect.trace_writer.emitter import HIDDEN_FILE
from traincheck.schema.metrics.requests import SUBJECTS, MetricRequest, MonitorView

METRICS = MonitorView(
    requests=tuple(
        MetricRequest(on=on, statistics=("entropy" if on == "attention" else "rms",))
        for on in SUBJECTS
    )
)
EVERYTHING: dict[str, Any] = {
    "view": "diff",
    "checksums": "all",
    "monitor": METRICS.to_json(),
    "probe": True,
    "profile": (0, 3),
    "source": True,
}
MODES = [
    pytest.param({}, id="default"),
    pytest.param({"level": "deep"}, id="deep"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param({**EVERYTHING, "level": "deep"}, id="everything deep"),
]
PACKAGES = ("torch", "random", "warnings", "logging")


def layers() -> Iterator[list[replacements.Replacement]]:
    """The replacements of ours, by attribute."""
    for place in list(replacements._STACKS):
        if found := replacements._stack(place):  # else a class that the program has freed
            yield found


def ours() -> dict[tuple[int, str], str]:
    """The attributes that lead to code of ours, found by looking at torch itself."""
    modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in PACKAGES and m]
    found = (one for m in modules for one in list(vars(m).values()))
    # Not isinstance: objects of torch warn when they are asked for their class
    classes = {one for one in found if issubclass(type(one), type)}
    return {
        (id(holder), name): f"{holder.__name__}.{name}"
        for holder in [*modules, *classes]
        for name, value in list(vars(holder).items())
        if not name.startswith("_traincheck")
        and (_is_hidden(value) or _is_hidden(vars(type(value)).get("__call__")))
    }


def expected() -> set[tuple[int, str]]:
    """Those that are replaced now. Each by one owner of ours."""
    found = [(one[0].holder, one[0].attribute, [each._owner for each in one]) for one in layers()]
    assert [(holder, name, owners) for holder, name, owners in found if len(owners) > 1] == []
    return {(id(holder), name) for holder, name, _ in found}


def train_until_its_loss_is_followed() -> None:
    """In the next step methods of tensors are replaced, too."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.ones(2, 2)), torch.ones(2, 2)).backward()
        optimizer.step()


def _is_hidden(value: Any) -> bool:
    return type(value) is types.FunctionType and value.__code__.co_filename == HIDDEN_FILE


@pytest.mark.parametrize("settings", MODES)
def test_no_function_of_torch_is_replaced_twice(tmp_path: Path, settings: dict[str, Any]) -> None:
    train_until_its_loss_is_followed()  # torch imports parts of it now, which copy names
    before = ours()
    with recording(tmp_path, **settings):
        assert len(expected()) > 60
        assert _beside(before, expected()) == []
        train_until_its_loss_is_followed()
        assert (id(torch.Tensor), "__add__") in expected()
        assert _beside(before, expected()) == []
    assert ours() == before


def _beside(before: Mapping[tuple[int, str], str], known: set[tuple[int, str]]) -> list[str]:
    """What is replaced by other means."""
    return [name for key, name in ours().items() if key not in before and key not in known]


@pytest.mark.parametrize("settings", [pytest.param(EVERYTHING, id="everything")])
def test_functions_with_several_listeners(tmp_path: Path, settings: dict[str, Any]) -> None:
    with recording(tmp_path, **settings) as run:
        moments = run.session.moments
        assert len(moments.at(nn.Module, "load_state_dict").all) == 4
        assert len(moments.at(Optimizer, "state_dict").all) == 2
        assert isinstance(run.session.profile, ProfileRecorder)
        assert [len(one.all) for one in (moments.modules, moments.engine, moments.fetches)] == [
            2,
            1,
            1,
        ]
    assert not moments.at(nn.Module, "load_state_dict").all
    assert not moments.modules.all


class Place:
    """A holder of a function."""

    @staticmethod
    def function(value: Any = 1, fails: bool = False) -> Any:
        if fails:
            raise ValueError(value)
        return value


def listening(run: Recording, said: list[Any], name: str, **given: Any) -> Around:
    def before(args: Any, kwargs: Any) -> str:
        said.append(f"before {name}")
        return name

    def left(note: Any, failed: BaseException | None) -> None:
        said.append(f"left {note} {type(failed).__name__}")

    def after(note: Any, args: Any, kwargs: Any, result: Any) -> None:
        said.append(f"after {note} {result}")

    return Around(before, after, left, **given)


def test_who_came_last_is_the_outermost(tmp_path: Path) -> None:
    said: list[Any] = []
    original = Place.function
    with recording(tmp_path) as run:
        moment = Moment(run.session, (Place, "function"))
        first, second = (listening(run, said, name) for name in ("first", "second"))
        moment.add(first)
        moment.add(second)
        assert Place.function(3) == 3
        with pytest.raises(ValueError, match="4"):
            Place.function(4, fails=True)
        moment.leave(first)
        assert Place.function(5) == 5
        moment.leave(second)
        assert Place.function is original
    assert said == [
        "before second", "before first", "left first NoneType", "left second NoneType",
        "after first 3", "after second 3",
        "before second", "before first", "left first ValueError", "left second ValueError",
        "before second", "left second NoneType", "after second 5",
    ]  # fmt: skip


def test_while_nothing_is_recorded_only_some_listen(tmp_path: Path) -> None:
    said: list[Any] = []
    with recording(tmp_path) as run:
        moment = Moment(run.session, (Place, "function"))
        listeners = [
            listening(run, said, "always", always=True),
            listening(run, said, "recorded"),
        ]
        for each in listeners:
            moment.add(each)
        em = run.session.local.em or run.session.emitter()
        em.busy = True
        assert Place.function(3) == 3
        em.busy = False
        for each in listeners:
            moment.leave(each)
    assert said == ["before always", "left always NoneType", "after always 3"]


def test_only_those_who_are_told_of_recorded_calls_cost_a_thread_its_file(tmp_path: Path) -> None:
    said: list[Any] = []
    with recording(tmp_path) as run:
        moment = Moment(run.session, (Place, "function"))

        def has_file() -> bool:
            found: list[bool] = []

            def call() -> None:
                Place.function()
                found.append(run.session.local.em is not None)

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return found[0]

        listeners = [listening(run, said, "always", always=True), listening(run, said, "recorded")]
        moment.add(listeners[0])
        assert not has_file()  # a process group may be made here, and the rank is not known before
        moment.add(listeners[1])
        assert has_file()
        for each in listeners:
            moment.leave(each)


def test_a_call_in_another_thread_that_ends_last_leaves_the_moment_open(tmp_path: Path) -> None:
    said: list[Any] = []
    first, second = threading.Event(), threading.Event()

    class Slow:
        """A holder whose function waits until it may return."""

        @staticmethod
        def function(begun: threading.Event | None, may_end: threading.Event) -> None:
            if begun is not None:
                begun.set()
            assert may_end.wait(60)

    with recording(tmp_path) as run:
        moment = Moment(run.session, (Slow, "function"))
        listeners = [listening(run, said, "always", always=True), listening(run, said, "recorded")]
        for each in listeners:
            moment.add(each)
        threads = []
        for may_end in (first, second):
            begun = threading.Event()
            thread = threading.Thread(target=Slow.function, args=(begun, may_end))
            thread.start()
            assert begun.wait(60)
            threads.append(thread)
        for may_end, thread in zip((first, second), threads):
            may_end.set()
            thread.join()
        said.clear()
        Slow.function(None, first)
        for each in listeners:
            moment.leave(each)
    assert said[:2] == ["before recorded", "before always"]


def test_a_failure_of_one_listener_reaches_neither_the_program_nor_the_others(
    tmp_path: Path,
) -> None:
    said: list[Any] = []

    def broken(*_: Any) -> None:
        raise RuntimeError("ours")

    with recording(tmp_path, must_be_whole=False) as run:
        moment = Moment(run.session, (Place, "function"))
        listeners = [Around(broken, broken, broken), listening(run, said, "other")]
        for each in listeners:
            moment.add(each)
        assert Place.function(3) == 3
        for each in listeners:
            moment.leave(each)
    assert said == ["before other", "left other NoneType", "after other 3"]
    assert len(run.marks("fault")) == 1


def test_links_of_a_chain_pass_calls_on() -> None:
    said: list[str] = []

    def link(name: str) -> Any:
        def pass_on(original: Any, first: Any, args: Any, kwargs: Any) -> Any:
            said.append(name)
            return original(first, *args, **kwargs)

        return pass_on

    calls = Calls((Place, "function"))
    inner, outer = link("inner"), link("outer")
    original = Place.function
    calls.add(inner)
    calls.add(outer)
    assert Place.function(3) == 3
    with calls.suspended():
        assert Place.function is original
    calls.leave(inner)
    assert Place.function(4) == 4
    calls.leave(outer)
    assert Place.function is original
    assert said == ["outer", "inner", "outer"]


def test_an_instrument_that_is_switched_off_listens_no_more(tmp_path: Path) -> None:
    with recording(tmp_path, monitor=METRICS.to_json(), must_be_whole=False) as run:
        moments, hooks = run.session.moments, run.session.hooks
        listening_before = len(hooks.at_step_end.all)
        (monitor,) = (each for each in run.session.installed if each.name == "monitor")
        assert moments.modules.all == (monitor._call,)
        monitor.remove()
        assert not moments.modules.all
        assert len(hooks.at_step_end.all) == listening_before - 1
        model = nn.Linear(2, 2)
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), 2)
        for (batch,) in loader:
            model(batch).sum().backward()
    assert sys.modules["torch"].nn.Module._call_impl.__code__.co_filename != HIDDEN_FILE
