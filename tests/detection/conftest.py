"""One laboratory for all detection tests: references are recorded once, also under xdist."""

import os

import pytest

from benchmarks.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "detection-lab"
    folder.mkdir(exist_ok=True)
    return Lab(folder)
