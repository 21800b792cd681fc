"""What was recorded only because it was asked for: packages of the user, level deep."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from tests.collect.recording import recording
from tests.learning import learn, report_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

PACKAGE = "mine_to_learn"


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    (tmp_path / f"{PACKAGE}.py").write_text("def scaled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(PACKAGE, None)


def run(folder, **settings: Any) -> list[Event]:
    """A healthy run that calls a function of the package, and an operator twice in each step."""
    with recording(folder, **settings) as found:
        from mine_to_learn import scaled

        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.gelu(net(scaled(torch.randn(4, 3).tanh().abs())).tanh()).sum().backward()
            optimizer.step()
    sys.modules.pop(PACKAGE, None)
    return found.events


ASKED = [
    pytest.param({"instrument": (PACKAGE,)}, "without --instrument mine_to_learn", id="package"),
    pytest.param({"level": "deep"}, "the trace is of level default", id="deep"),
]


@pytest.mark.parametrize(("asked", "reason"), ASKED)
def test_not_observable_where_nobody_asked(tmp_path, asked, reason):
    learned = learn(run(tmp_path / "good", **asked)).invariants
    special = {i.id for i in learned if i.needs.packages or i.needs.level == "deep"}
    assert special
    report = report_of(learned, run(tmp_path / "new"))
    assert report.findings == []
    unseen = {id_ for id_, verdict in report.verdicts.items() if verdict is Verdict.NOT_OBSERVABLE}
    assert unseen == special
    assert any(reason in note for note in report.notes)


@pytest.mark.parametrize(("asked", "reason"), ASKED)
def test_what_checks_speak_of_is_recorded_for_them(tmp_path, asked, reason):
    learned = learn(run(tmp_path / "good", **asked)).invariants
    needs = Needs()
    for invariant in learned:
        needs |= invariant.needs
    report = report_of(learned, run(tmp_path / "new", needs=needs))
    assert report.findings == []
    assert Verdict.NOT_OBSERVABLE not in report.verdicts.values()


def test_what_is_always_recorded_says_nothing_of_packages(tmp_path):
    learned = learn(run(tmp_path / "good")).invariants
    assert not any(invariant.needs.packages for invariant in learned)
    assert {i.needs.level for i in learned} == {"", "default"}  # Tensor.tanh is always recorded
    report = report_of(learned, run(tmp_path / "new", level="deep", instrument=(PACKAGE,)))
    assert report.findings == []
