import pytest
from hypothesis import settings

from tests.golden import Golden, path_for

# How long an example takes is the machine's affair, and a busy one must not fail a test.
settings.register_profile("traincheck", deadline=None)
settings.load_profile("traincheck")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="accept what golden tests get as expected"
    )


@pytest.fixture(autouse=True)
def plain_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are as wide as COLUMNS says, where the machine that tests says something."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares the texts of findings with those that the golden file has for this test."""
    update = bool(request.config.getoption("--update-golden"))
    return Golden(path_for(request.path), request.node.name, update=update)
