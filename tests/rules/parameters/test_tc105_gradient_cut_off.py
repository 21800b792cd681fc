"""TC105: gradients that stop on the way."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

FIRST = ["Net.fc1.weight", "Net.fc1.bias"]
LAST = ["Net.fc2.weight", "Net.fc2.bias"]

BROKEN = net().steps(4, no_gradient=FIRST).build()


def test_fires_where_only_the_last_layer_gets_gradients() -> None:
    finding = fires("TC105", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert finding.variables == tuple(sorted(FIRST))
    assert finding.severity == "warning"


def test_fires_on_what_runs_without_a_graph(golden: Golden) -> None:
    events = [
        e.replace(grad_enabled=False) if e.kind == "call" and e.module == "Net.fc1" else e  # type: ignore[union-attr,call-arg]
        for e in BROKEN
    ]
    golden(fires("TC105", events))


def test_quiet_on_what_runs_without_a_graph_while_the_head_begins_to_learn() -> None:
    def events(steps: int):  # type: ignore[no-untyped-def]
        trace = net().steps(steps, no_gradient=FIRST).steps(2)
        return [
            e.replace(grad_enabled=False)  # type: ignore[call-arg]
            if e.kind == "call" and e.module == "Net.fc1" and e.step < steps  # type: ignore[union-attr,operator]
            else e
            for e in trace.build()
        ]

    assert quiet("TC105", events(40)) is Verdict.HELD
    assert fires("TC105", events(300)).first_step == 0


def beside(steps: int, *, later: bool = False, called: bool = True) -> list[Event]:
    """Steps of two models under one optimizer, of which gradients reach the first alone."""
    trace = TraceBuilder().process().model("Net", MLP).model("Aux", MLP).optimizer()
    own = [f"Net.{name}" for name in MLP]
    for step in range(steps):
        reached = own + ([f"Aux.{name}" for name in MLP] if later and step == steps - 1 else [])
        trace.begin_step().zero_grad().forward("Net")
        if called:
            trace.forward("Aux")
        trace.backward(only=reached).optimizer_step()
    return trace.build()


def test_fires_on_a_model_whose_loss_is_a_mere_number() -> None:
    finding = fires("TC105", beside(20))
    assert finding.first_step == 0
    assert finding.variables == tuple(sorted(f"Aux.{name}" for name in MLP))
    assert mentions(finding, ".item()")


def test_quiet_on_a_model_that_is_trained_later_or_not_called() -> None:
    assert quiet("TC105", beside(20, later=True)) is Verdict.HELD
    assert quiet("TC105", beside(20, called=False)) is Verdict.HELD
    assert quiet("TC105", beside(19)) is Verdict.HELD


def test_quiet_when_gradients_arrive() -> None:
    assert quiet("TC105", net().steps(4).build()) is Verdict.HELD
    once = net().step().steps(3, no_gradient=FIRST)  # routing, layers that are skipped
    assert quiet("TC105", once.build()) is Verdict.HELD


def test_quiet_on_what_comes_last_and_is_no_part_of_the_loss() -> None:
    assert quiet("TC105", net().steps(4, no_gradient=LAST).build()) is Verdict.HELD


def test_quiet_on_what_is_not_called() -> None:
    events = [e for e in BROKEN if not (e.kind == "call" and e.module == "Net.fc1")]  # type: ignore[union-attr]
    assert quiet("TC105", events) is Verdict.HELD


def test_quiet_on_frozen_and_on_what_no_optimizer_holds() -> None:
    frozen = TraceBuilder().process().model("Net", MLP, frozen=FIRST).optimizer().steps(4)
    assert quiet("TC105", frozen.build()) is Verdict.HELD
    probe = TraceBuilder().process().model("Net", MLP).optimizer(names=LAST)
    assert quiet("TC105", probe.steps(4, no_gradient=FIRST).build()) is Verdict.HELD


def test_quiet_on_optimizers_that_step_within_backward(tmp_path: Path) -> None:
    """The body's step and clear in hooks, the head has an ordinary one."""
    with recording(tmp_path / "run") as run:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        own = {p: torch.optim.Adam([p]) for p in model[0].parameters()}

        def update(parameter: torch.Tensor) -> None:
            own[parameter].step()
            own[parameter].zero_grad()

        for parameter in own:
            parameter.register_post_accumulate_grad_hook(update)
        head = torch.optim.Adam(model[2].parameters())
        for _ in range(6):
            nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
            head.step()
            head.zero_grad()
    assert quiet("TC105", run.events) is Verdict.HELD


class Headed(nn.Module):
    """An extractor that runs without a graph, in front of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor, self.head = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen = self.extractor(x).relu()
        return self.head(seen)


def fit(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def test_a_model_that_is_gone_was_never_trained(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        model = Headed()
        fit(model, 12)
        state = model.state_dict()
        del model
        model = Headed()
        model.load_state_dict(state)
        fit(model, 6)
    finding = fires("TC105", run.events)
    assert finding.first_step == 0
    assert finding.variables == ("Headed.extractor.bias", "Headed.extractor.weight")
