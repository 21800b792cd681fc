import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import warm
from tests.golden import Golden, path_for

# How long an example takes is the machine's affair, and a busy one must not fail a test.
settings.register_profile("traincheck", deadline=None)
settings.load_profile("traincheck")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="accept what golden tests get as expected"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Programs that tests start are copies of one warm process, for all workers."""
    if warm.ADDRESS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="warm-")
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(warm.start(Path(folder.name)))
    if getattr(config.option, "dist", "no") == "no":  # else in the workers, which Python starts
        warm.use(os.environ[warm.ADDRESS])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep modules and tests, which live to the end, out of the garbage collections of tests.

    Otherwise each full collection walks through all of them, which takes more than a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """A test with the marker ``real_process``, and its fixtures, start Python itself."""
    if item.get_closest_marker("real_process") is None:
        return (yield)
    with warm.real_processes():
        return (yield)


@pytest.fixture(autouse=True)
def plain_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are as wide as COLUMNS says, where the machine that tests says something."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares the texts of findings with those that the golden file has for this test."""
    update = bool(request.config.getoption("--update-golden"))
    return Golden(path_for(request.path), request.node.name, update=update)
