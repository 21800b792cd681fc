"""Which line of the user's program a record names."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.trace_writer.call_site import place, where


def here() -> bytes:
    return place(sys._getframe(1))


def line(offset: int = 0) -> int:
    return sys._getframe(1).f_lineno + offset


def test_each_line_of_a_function_is_told_apart():
    first, at_first = here(), line()
    second, at_second = here(), line()
    assert first == f'"{__file__}:{at_first}"'.encode()
    assert second == f'"{__file__}:{at_second}"'.encode()


def test_one_line_is_one_place_however_often():
    assert len({here() for _ in range(3)}) == 1


def test_frames_of_torch_are_passed_over(tmp_path):
    model = nn.Linear(2, 1)
    with recording(tmp_path) as run:
        model(torch.ones(1, 2)).sum().backward()
        at = line(-1)
    (backward,) = run.calls("torch.autograd.backward")
    assert backward.where == f"{__file__}:{at}"


def test_code_that_lives_where_dead_code_was_has_its_own_place():
    """Ids are used again, more often than as many codes are remembered."""
    for number in range(5000):
        spot = {"here": here}
        exec(compile("found = here()", f"made{number}.py", "exec"), spot)
        assert spot["found"] == f'"made{number}.py:1"'.encode()


def test_outside_of_any_program_there_is_no_place():
    spot = {"place": place, "sys": sys}
    exec(compile("found = place(sys._getframe())", "<made>", "exec"), spot)
    assert spot["found"].startswith(f'"{__file__}:'.encode()), "the next frame outwards"
    assert place(None) == b"null"
    assert where() is not None


def test_a_script_whose_path_is_not_utf8_is_recorded(tmp_path):
    path = os.fsdecode(b"d\xff/train.py")
    code = (
        "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    with recording(tmp_path) as run:
        exec(compile(code, path, "exec"), {"torch": torch})
    assert [event.where for event in run.of("optimizer")] == ["d\\udcff/train.py:2"]


def test_outermost_forwards_and_seeds_name_their_line(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with recording(tmp_path) as run:
        torch.manual_seed(3)
        seeded = line(-1)
        with torch.no_grad():
            model(torch.ones(1, 2))
            at = line(-1)
    calls = run.calls("torch.nn.Module.forward")
    assert {call.where for call in calls if call.root} == {f"{__file__}:{at}"}
    assert {call.where for call in calls if not call.root} == {None}
    seeds = [event for event in run.of("rng") if event.change == "seed"]
    assert {event.where for event in seeds} == {f"{__file__}:{seeded}"}


def in_package(source: str, tmp_path, **names) -> dict:
    """Names that code of an installed package defines."""
    path = tmp_path / "lib" / "site-packages" / "trainer" / "loop.py"
    exec(compile(source, str(path), "exec"), names)
    return names


def test_a_line_of_a_package_is_followed_by_that_of_the_program(tmp_path):
    trainer = in_package("def fit(do):\n    return do()\n\nnow = fit(here)", tmp_path, here=here)
    found, at = trainer["fit"](here), line()
    other, at_other = trainer["fit"](here), line()
    path = tmp_path / "lib/site-packages/trainer/loop.py"
    assert found == f'"{path}:2 from {__file__}:{at}"'.encode()
    assert other == f'"{path}:2 from {__file__}:{at_other}"'.encode()
    assert trainer["now"].startswith(f'"{path}:2 from {__file__}:'.encode())


def test_a_line_of_the_program_below_a_package_stays_alone(tmp_path):
    def step() -> tuple[bytes, int]:
        return here(), line()

    trainer = in_package("def fit(do):\n    return do()", tmp_path)
    found, at = trainer["fit"](step)
    assert found == f'"{__file__}:{at}"'.encode()


def test_a_package_that_no_program_calls_is_named_alone(tmp_path):
    threads = in_package(
        "import threading\nfound = []\ndef run():\n    found.append(here())\n"
        "thread = threading.Thread(target=run)\nthread.start()\nthread.join()",
        tmp_path,
        here=here,
    )
    path = tmp_path / "lib/site-packages/trainer/loop.py"
    assert threads["found"] == [f'"{path}:4"'.encode()]
