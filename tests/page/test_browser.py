"""The page in a real browser, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_page import write
from tests.builders import MLP, TraceBuilder
from tests.page.making import page_of_events
from tests.page.test_page import HOSTILE, broken
from traincheck.page.build import Shown, page_of
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json
from traincheck.store.reader import TraceReader

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None and "CI" not in os.environ, reason="needs Chromium")

STEPS, LAYERS, SPIKE = 1000, 200, (617, "Net.layers.150")
# How many pixels of the first map have the color of the spike: in its row, and in all.
SPIKE_PIXELS = """() => {
  const canvas = document.querySelector("#maps canvas"), context = canvas.getContext("2d");
  const {width, height} = canvas, strip = 8, deep = (height - strip) / 200;
  const bright = (top, rows) => {
    const {data} = context.getImageData(0, top, width, rows);
    let count = 0;
    for (let i = 0; i < data.length; i += 4)
      if (data[i] > 245 && data[i + 1] > 220 && data[i + 2] < 60) count++;
    return count;
  };
  return [bright(strip + 150 * deep, deep), bright(strip, height - strip)];
}"""
RED_PIXELS = """() => {
  const canvas = document.querySelector(".plot canvas");
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i] === 255 && !data[i + 1] && data[i + 2] === 51) count++;
  return count;
}"""
PAINTED = """() => [...document.querySelectorAll("canvas")].map(canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some(value => value);
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as player:
        started = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 1000 steps and 200 layers, one gradient of which is large once."""
    folder = tmp_path_factory.mktemp("large")
    write(folder / "run", STEPS, layers=LAYERS, ranks=1, spike=SPIKE)
    path = folder / "report.html"
    path.write_text(page_of(TraceReader(folder / "run"), Shown()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with a finding."""
    folder = tmp_path_factory.mktemp("small")
    path = folder / "report.html"
    path.write_text(page_of_events(folder / "run", broken(30).build())[0], encoding="utf-8")
    return path


class Visit:
    """A page that was opened, and what it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", [1280, 400])
def test_it_asks_for_nothing_and_draws(browser: Any, large: Path, scheme: str, wide: int) -> None:
    with Visit(
        browser, large, color_scheme=scheme, viewport={"width": wide, "height": 900}
    ) as visit:
        visit.page.wait_for_timeout(200)
        assert visit.requests == [large.as_uri()]
        assert visit.complaints == []
        painted = visit.page.evaluate(PAINTED)
        assert len(painted) >= 5
        assert all(painted)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= wide


def shown_steps(visit: Visit) -> tuple[int, int]:
    first, last = visit.page.locator(".ends").first.locator("span").all_inner_texts()
    return int(first.removeprefix("step ")), int(last.removeprefix("step "))


def zoom_in(visit: Visit, step: int) -> None:
    """Drag over a quarter of the first plot, around a step."""
    first, last = shown_steps(visit)
    box = visit.page.locator(".u-over").first.bounding_box()
    middle = box["x"] + box["width"] * (step - first) / (last - first)
    down = box["y"] + box["height"] / 2
    visit.page.mouse.move(max(middle - box["width"] / 8, box["x"]), down)
    visit.page.mouse.down()
    right = min(middle + box["width"] / 8, box["x"] + box["width"] - 1)
    visit.page.mouse.move(right, down, steps=4)
    visit.page.mouse.up()


def test_a_spike_is_visible_at_every_zoom(browser: Any, large: Path) -> None:
    with Visit(browser, large, viewport={"width": 700, "height": 900}) as visit:
        seen = []
        for _ in range(5):
            seen.append(shown_steps(visit))
            own, everywhere = visit.page.evaluate(SPIKE_PIXELS)
            assert own > 0, seen
            assert own == everywhere, seen
            zoom_in(visit, SPIKE[0])
        assert seen[0] == (0, STEPS - 1)
        assert seen[-1][1] - seen[-1][0] < 20
        visit.page.locator("h2").first.click()
        visit.page.keyboard.press("0")
        assert shown_steps(visit) == seen[0]


def test_the_value_of_a_cell_and_the_curve_of_a_layer(browser: Any, large: Path) -> None:
    with Visit(browser, large) as visit:
        visit.page.locator("#maps canvas").first.focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            visit.page.keyboard.press(key)
        value = visit.page.locator(".value").first
        assert value.inner_text().startswith("Net.layers.1, step 2: ")
        visit.page.keyboard.press("Enter")
        assert visit.page.get_by_text("Net.layers.1, gradient norm", exact=True).is_visible()
        visit.page.locator(".map select").first.select_option("largest peak first")
        assert visit.page.locator(".names div").first.inner_text() == SPIKE[1]


def test_a_loss_that_is_not_finite_is_red(browser: Any, tmp_path: Path) -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(9)
    nan = tensor_json(TensorSummary("float32", (), value="nan", requires_grad=True))
    events = [
        event.replace(args={"tensors": [nan]})
        if isinstance(event, CallEvent) and event.api == Families.BACKWARD and event.step == 6
        else event
        for event in trace.build()
    ]
    path = tmp_path / "report.html"
    path.write_text(page_of_events(tmp_path / "run", events)[0], encoding="utf-8")
    with Visit(browser, path) as visit:
        assert visit.page.get_by_text("Not finite at step 6 (red).").is_visible()
        visit.page.wait_for_timeout(100)
        assert visit.page.evaluate(RED_PIXELS) > 20


def test_keys_go_through_the_findings_and_a_step_opens(browser: Any, small: Path) -> None:
    with Visit(browser, small) as visit:
        visit.page.keyboard.press("j")
        assert visit.page.evaluate("document.activeElement.id") == "finding-0"
        visit.page.locator(".finding [data-step]").first.click()
        assert visit.page.locator("details[data-inspected='1']").get_attribute("open") is not None
        assert visit.complaints == []


def test_without_javascript_findings_are_readable(browser: Any, small: Path) -> None:
    with Visit(browser, small, java_script_enabled=False) as visit:
        text = visit.page.locator("main").inner_text()
        for part in ("TC201", "Call optimizer.zero_grad() once", "train.py:88", "need JavaScript"):
            assert part in text


def test_on_paper_there_is_no_navigation(browser: Any, small: Path) -> None:
    with Visit(browser, small, color_scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="light")
        assert not visit.page.locator("nav").is_visible()
        assert visit.page.locator(".finding").first.is_visible()
        assert visit.page.pdf().startswith(b"%PDF")


def test_hostile_names_do_nothing(browser: Any, tmp_path: Path) -> None:
    trace = TraceBuilder().process()
    for name in HOSTILE:
        trace.model(name, MLP)
    trace.optimizer().steps(3, omit={"zero_grad"})
    path = tmp_path / "report.html"
    path.write_text(page_of_events(tmp_path / "run", trace.build())[0], encoding="utf-8")
    with Visit(browser, path, viewport={"width": 400, "height": 900}) as visit:
        assert visit.complaints == []
        assert visit.requests == [path.as_uri()]
        assert visit.page.evaluate("typeof boom") == "undefined"
        assert visit.page.locator("img, svg, iframe, main a[href*='example']").count() == 0
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400
