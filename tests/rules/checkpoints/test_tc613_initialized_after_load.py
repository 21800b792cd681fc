"""TC613: weights that are initialized after they were loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.builders import LINEAR
from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.resuming import Resuming
from traincheck.schema.events import CallEvent, Event, StateEvent
from traincheck.schema.findings import Verdict

WEIGHTS = ("Net.fc1.weight", "Net.fc2.weight")


def run(
    *, filled: tuple[str, ...] = WEIGHTS, late: bool = False, same: bool = False
) -> list[Event]:
    """late: loaded after the initialization. same: the values are those that were loaded."""
    builder = Resuming().process()
    values = {name: f"xxh3-128:{name}" for name in WEIGHTS}
    load = {"target": "Net", "matched": 2, "changed": 2, "values": values}
    if not late:
        builder.checkpoint("load_state_dict", **load)  # type: ignore[attr-defined]
    for name in WEIGHTS:
        builder.call("torch.nn.init.xavier_uniform_", result={"name": name})
    if late:
        builder.checkpoint("load_state_dict", **load)  # type: ignore[attr-defined]
    builder.model("Net", {name.removeprefix("Net."): LINEAR for name in WEIGHTS})
    events = builder.optimizer().steps(2).build()
    looks = {e.name: e for e in events if isinstance(e, StateEvent) and e.change == "new"}
    for index, event in enumerate(events):
        if isinstance(event, StateEvent) and event.name in WEIGHTS and event.summary:
            content = values[event.name] if same else "xxh3-128:other"
            events[index] = event.replace(summary=event.summary.replace(fingerprint=content))
        elif isinstance(event, CallEvent) and isinstance(event.result, dict):
            name = event.result.get("name")
            if name in WEIGHTS:
                identity = looks[name].identity if name in filled else 1
                events[index] = event.replace(result={"identity": identity})
    return events


BROKEN = run()


def test_fires_once(golden: Golden) -> None:
    finding = fires("TC613", BROKEN)
    assert (finding.violations, finding.severity) == (1, "error")
    golden(finding)
    assert mentions(finding, "torch.nn.init.xavier_uniform_", 2)


@pytest.mark.parametrize("events", [run(filled=WEIGHTS[:1]), run(late=True), run(same=True)])
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC613", events) is Verdict.HELD


def filled(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def after(model: nn.Sequential, state: dict[str, torch.Tensor]) -> None:
    model.load_state_dict(state)
    model.apply(filled)


def before(model: nn.Sequential, state: dict[str, torch.Tensor]) -> None:
    model.apply(filled)
    model.load_state_dict(state)


def head_alone(model: nn.Sequential, state: dict[str, torch.Tensor]) -> None:
    model.load_state_dict(state)
    model[2].apply(filled)


def twice(model: nn.Sequential, state: dict[str, torch.Tensor]) -> None:
    after(model, state)
    model.load_state_dict(state)


@pytest.mark.parametrize(
    ("prepare", "is_wrong"), [(after, True), (before, False), (head_alone, False), (twice, False)]
)
def test_recorded_runs(
    tmp_path: Path,
    prepare: Callable[[nn.Sequential, dict[str, torch.Tensor]], None],
    is_wrong: bool,
    golden: Golden,
) -> None:
    with recording(tmp_path / "run") as recorded:
        state = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict()
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        prepare(model, state)
        other = nn.Linear(4, 4)  # another model that is made, and not loaded
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(other(model(torch.randn(16, 8))), torch.randint(4, (16,))).backward()
            optimizer.step()
    if is_wrong:
        finding = fires("TC613", recorded.events)
        assert finding.first_step == 0
        golden(finding, numbers=False)
        assert mentions(finding, 2)
    else:
        assert quiet("TC613", recorded.events) is Verdict.HELD
