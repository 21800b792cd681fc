"""A program here is probed for one rule: the experiments of the others are not made.

That all of them are made on one process is for tests/collect/test_probes.py.
"""

from __future__ import annotations

import pytest

from tests.checking import BY_CODE
from traincheck.collect.probes.engine import ProbeEngine
from traincheck.collect.probes.registry import EXPERIMENTS
from traincheck.rules.probes.probe_rule import ProbeRule

GIVEN = ProbeEngine.__init__.__kwdefaults__


@pytest.fixture(autouse=True)
def one_experiment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the experiment that the rule of the module judges."""
    rule = BY_CODE[request.path.stem.split("_")[1].upper()]
    assert isinstance(rule, ProbeRule)
    chosen = tuple(each for each in EXPERIMENTS if each.name == rule.experiment)
    monkeypatch.setitem(GIVEN, "experiments", chosen)


@pytest.fixture
def every_experiment(one_experiment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all of them: for a test that compares the results of several."""
    monkeypatch.setitem(GIVEN, "experiments", EXPERIMENTS)
