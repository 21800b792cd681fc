"""The lines of the terminal view: they fit, they are those of the run, and no spike is lost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.live.runs import BROKEN, checked_by, norms_at, scene
from traincheck.live.checked import Checked
from traincheck.live.screen import FINDINGS, HELP, MODEL_ORDER, Choice, Scene, number, screen
from traincheck.live.status import RunStatus
from traincheck.live.timeline import ASCII, BLOCKS, NOT_FINITE, sparkline
from traincheck.schema.events import Event

SIZES = [(80, 24), (200, 50), (20, 8), (300, 12)]
HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\u202egnp.exe",
    "[bold]markup[/bold]",
    "{{ template }}",
    "</script>",
    "字" * 60,
    "a" * 10_000,
    "\r\nmany\tlines",
]


def steps(number_of: int, layers: int = 40, spike: int = -1) -> list[Event]:
    return [
        event
        for step in range(number_of)
        for event in norms_at(
            step, {f"Net.b{n}": 100.0 if step == spike else 1.0 + n for n in range(layers)}
        )
    ]


def text(shown: Scene, choice: Choice | None = None, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in screen(shown, choice or Choice(), width, height))


def layers_of(shown: Scene, choice: Choice) -> list[str]:
    lines = screen(shown, choice, 120, 60)
    return [word for line in lines for word in line.plain.split()[:1] if word.startswith("Net.")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", ["overview", FINDINGS, HELP])
def test_every_line_fits_and_the_screen_is_full(
    size: tuple[int, int], page: str, tmp_path: Path
) -> None:
    _, notes = checked_by(BROKEN, tmp_path)
    width, height = size
    for shown in (scene([]), scene(steps(5)), scene(BROKEN, checked=notes.state())):
        lines = screen(shown, Choice(page=page), width, height)
        assert len(lines) == height
        assert max(cell_len(line.plain) for line in lines) <= width


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    events = norms_at(0, {f"Net.{name}": 1.0})
    finding = {"severity": "error", "code": "TC1", "title": name, "message": name, "fix": name}
    checked = Checked(findings=[finding], counts={"error": 1})
    for page in ("overview", FINDINGS):
        lines = screen(
            scene(events, program=name, checked=checked), Choice(page=page, only=""), 80, 24
        )
        assert len(lines) == 24
        for line in lines:
            assert cell_len(line.plain) <= 80
            assert not set(line.plain) & set("\x1b\u202e\r\n\t")
    assert "[bold]" in text(scene(norms_at(0, {"[bold]x[/bold]": 1.0})))


def test_the_head_has_step_rate_and_state() -> None:
    head = text(scene(steps(12))).splitlines()[0]
    for part in ("train.py", "running", "step 11", "10 steps/s", "1 rank", "mode train"):
        assert part in head


def test_numbers_are_the_last_ones() -> None:
    events = [
        *norms_at(0, {"Net.a": 3.0, "Net.b": 4.0}),
        *norms_at(1, {"Net.a": 6.0, "Net.b": 8.0}),
    ]
    shown = text(scene(events))
    assert "grad norm 10 " in shown
    assert [line.split()[:2] for line in shown.splitlines()[3:5]] == [
        ["Net.a", "6"],
        ["Net.b", "8"],
    ]


def test_layers_are_in_the_order_of_the_model_or_sorted() -> None:
    shown = scene(norms_at(0, {"Net.c": 2.0, "Net.a": math.inf, "Net.b": 3.0}))
    by_norm = Choice(sort="gradient norm")
    assert layers_of(shown, Choice()) == ["Net.a", "Net.b", "Net.c"]  # no order is known: by name
    assert layers_of(shown, by_norm) == ["Net.a", "Net.b", "Net.c"]
    by_norm.is_reversed = True
    assert layers_of(shown, by_norm) == ["Net.c", "Net.b", "Net.a"]


def test_layers_without_the_number_come_last() -> None:
    events = [
        *norms_at(0, {"Net.z": 1.0}),
        *norms_at(1, {"Net.a": 5.0, "Net.z": 2.0}, role="parameter"),
    ]
    shown = scene(events)
    assert layers_of(shown, Choice(sort="gradient norm")) == ["Net.z", "Net.a"]
    assert layers_of(shown, Choice(sort="parameter norm")) == ["Net.a", "Net.z"]


def test_ranks_have_a_spread() -> None:
    events = [*norms_at(0, {"Net.a": 4.0}, rank=0), *norms_at(0, {"Net.a": 3.0}, rank=1)]
    shown = scene(events)
    assert shown.timeline.columns[-1] == "rank spread"
    assert shown.timeline.value("rank spread", "Net.a") == 0.25
    assert "0.25" in text(shown, Choice(sort="rank spread"))


def test_only_chosen_layers_are_shown() -> None:
    assert layers_of(scene(steps(2)), Choice(only="B1")) == [
        "Net.b1",
        *(f"Net.b1{n}" for n in range(10)),
    ]


def test_scrolling_ends_at_the_last_layer() -> None:
    choice = Choice(offset=10_000)
    last = text(scene(steps(2)), choice).splitlines()[-3]
    assert last.startswith("Net.b9 ")
    assert 0 < choice.offset < 40


def test_a_finding_is_shown_with_cause_line_and_fix(tmp_path: Path) -> None:
    _, notes = checked_by(BROKEN, tmp_path)
    shown = scene(BROKEN, checked=notes.state())
    assert "ERROR TC201 at step 1" in text(shown)
    page = text(shown, Choice(page=FINDINGS))
    for part in ("cause: ", "fix: Call optimizer.zero_grad()"):
        assert part in page
    assert "1 violated" in page


def test_without_a_check_it_says_so() -> None:
    assert "not checked: see --check" in text(scene(steps(1)))


def test_a_view_that_is_behind_says_so() -> None:
    assert "4.0 MB behind" in text(scene(steps(1), behind=4_000_000))


def test_the_exit_status_of_a_failed_run_is_shown() -> None:
    status = RunStatus(run="r", state="failed", exit_status=137)
    assert "failed (137)" in text(scene(steps(1), status=status))


@pytest.mark.parametrize("spike", [0, 1, 137, 499, 998, 999])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_spike_in_one_of_a_thousand_steps_is_seen(spike: int, width: int) -> None:
    shown = scene(steps(1000, layers=1, spike=spike))
    row = next(line for line in text(shown, width=width).splitlines() if line.startswith("Net.b0"))
    drawn = row.rpartition("  ")[2]
    assert drawn.count(BLOCKS[-1]) == 1
    assert abs(drawn.index(BLOCKS[-1]) / len(drawn) - spike / 1000) < 0.05


@given(
    st.lists(st.floats() | st.just(math.nan), min_size=1, max_size=300),
    st.integers(1, 80),
)
def test_a_sparkline_fits_and_shows_what_is_not_finite(numbers: list[float], width: int) -> None:
    numbers = [math.inf if math.isinf(n) else n for n in numbers]
    drawn = sparkline(numbers, width)
    assert len(drawn) == min(width, len(numbers))
    assert set(drawn) <= {*BLOCKS, NOT_FINITE, " "}
    assert (NOT_FINITE in drawn) == (math.inf in numbers)
    assert len(sparkline(numbers, width, ASCII)) == len(drawn)


@pytest.mark.parametrize("value", [0, 1e-3, 9.999e-4, 123.456, 99_999.9, 1e5, 1e-300, -1e300])
def test_numbers_are_short(value: float) -> None:
    assert len(number(value)) <= 10
    assert math.isclose(float(number(value)), value, rel_tol=1e-2)


def test_there_is_no_order_but_those_of_the_columns() -> None:
    shown = scene(steps(1))
    assert layers_of(shown, Choice(sort="unknown")) == layers_of(shown, Choice(sort=MODEL_ORDER))
