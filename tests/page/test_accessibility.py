"""Whether people with a keyboard, a screen reader or weak sight can read the page, by axe-core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_page import Recorded
from tests.builders import LINEAR
from tests.page.making import written
from tests.page.test_browser import BROWSER, Visit
from traincheck.api import make_engine
from traincheck.diff.library import diff
from traincheck.page.build import page_of_run
from traincheck.store.reader import TraceReader

sync_api = pytest.importorskip("playwright.sync_api")


def axe_core() -> Path | None:
    """The file axe.min.js: named by AXE_CORE, or in the package that carries it."""
    named = os.environ.get("AXE_CORE")
    if named:
        return Path(named)
    package = find_spec("axe_playwright_python")
    folders = (package.submodule_search_locations if package is not None else None) or ()
    return next((path for folder in folders for path in Path(folder).rglob("axe.min.js")), None)


AXE = axe_core()
pytestmark = [
    pytest.mark.skipif(BROWSER is None and "CI" not in os.environ, reason="needs Chromium"),
    pytest.mark.skipif(AXE is None, reason="needs axe-core, e.g. of axe-playwright-python"),
]
LAYERS = {f"layers.{index}.weight": LINEAR for index in range(6)}
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as player:
        started = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with findings, curves, maps, an opened step, and a difference to another run."""
    folder = tmp_path_factory.mktemp("accessible")
    broken = Recorded(world=1).model("Net", LAYERS).optimizer().steps(30, omit={"zero_grad"})
    healthy = Recorded(world=1).model("Net", LAYERS).optimizer().steps(30)
    run = written(folder / "run", broken.build())
    other = written(folder / "other", healthy.build())
    html, report = page_of_run(
        make_engine(), TraceReader(run), against=TraceReader(other), difference=diff(other, run)
    )
    assert report.findings
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def violations(visit: Visit) -> list[str]:
    assert AXE is not None
    visit.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = visit.page.evaluate("axe.run()")
    assert len(found["passes"]) > 10, "it looked at the page"
    return [
        f"{one['impact']} {one['id']}: {node['html']}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("wide", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_grave(browser: Any, page: Path, scheme: str, wide: int) -> None:
    with Visit(
        browser, page, color_scheme=scheme, viewport={"width": wide, "height": 900}
    ) as visit:
        assert visit.page.locator("#maps canvas").count() > 0
        visit.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = 1")
        assert violations(visit) == []


def test_a_picture_without_a_name_is_grave(browser: Any, page: Path) -> None:
    with Visit(browser, page) as visit:
        visit.page.evaluate("document.querySelector('main').append(new Image())")
        assert any("image-alt" in one for one in violations(visit))
