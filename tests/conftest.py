import pytest
from hypothesis import settings

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
