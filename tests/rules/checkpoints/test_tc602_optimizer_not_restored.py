"""TC602: a resume that leaves the optimizer behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checking import fires, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.resuming import PARTS, PATH, Resuming
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict


def resumed(*, path: str = PATH, lr: float = 1e-3, load: bool = False) -> list[Event]:
    builder = Resuming().begin()
    builder.optimizer(lr=lr)
    if load:
        builder.load_optimizer()
    return builder.train(path=path).steps(1).build()


BROKEN = resumed()


def test_fires_when_the_optimizer_begins_anew() -> None:
    finding = fires("TC602", BROKEN)
    assert finding.first_step == 0
    assert mentions(finding, "Adam")
    assert mentions(finding, PATH)


def test_fires_within_the_run_that_saved() -> None:
    builder = Resuming().process().model("Net")
    builder.optimizer().steps(2)
    builder.checkpoint("save", path=PATH, parts=PARTS)  # type: ignore[attr-defined]
    builder.checkpoint("load", path=PATH, parts=PARTS)  # type: ignore[attr-defined]
    builder.checkpoint("load_state_dict", target="Net", matched=4, changed=4)  # type: ignore[attr-defined]
    builder.end_step()
    builder.optimizers.clear()
    builder.step_number = 2
    builder.optimizer()
    builder.edit(builder.events[-1], id="opt1")
    builder.optimizers["opt1"] = builder.optimizers.pop("opt0")
    builder.optimizers["opt1"].id = "opt1"
    assert fires("TC602", builder.steps(2).build()).first_step == 2


def test_quiet_when_it_is_restored() -> None:
    assert quiet("TC602", resumed(load=True)) is Verdict.HELD


def test_quiet_on_fine_tuning() -> None:
    assert quiet("TC602", resumed(path="tuned/last.pt")) is Verdict.HELD
    assert quiet("TC602", resumed(lr=0.5)) is Verdict.HELD


def test_quiet_when_the_file_holds_no_optimizer() -> None:
    builder = Resuming().begin(parts={"model": PARTS["model"]})
    assert quiet("TC602", builder.optimizer().train().build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_a_rollback_to_the_best_model() -> None:
    builder = Resuming().process().model("Net")
    builder.optimizer().steps(2)
    builder.checkpoint("save", path=PATH, parts=PARTS)  # type: ignore[attr-defined]
    builder.checkpoint("load", path=PATH, parts=PARTS)  # type: ignore[attr-defined]
    builder.checkpoint("load_state_dict", target="Net", matched=4, changed=4)  # type: ignore[attr-defined]
    assert quiet("TC602", builder.steps(2).build()) is Verdict.HELD


@pytest.mark.parametrize("is_wrong", [True, False])
def test_an_optimizer_that_is_made_again_after_its_load(
    tmp_path: Path, is_wrong: bool, golden: Golden
) -> None:
    file = tmp_path / "last.pt"
    x, y = torch.randn(8, 4), torch.randn(8, 2)

    def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)

    with recording(tmp_path / "run") as run:
        net = nn.Linear(4, 2)
        train(net, torch.optim.Adam(net.parameters()))
        saved = torch.load(file, weights_only=True)
        resumed = nn.Linear(4, 2)
        resumed.load_state_dict(saved["net"])
        optimizer = torch.optim.Adam(resumed.parameters())
        optimizer.load_state_dict(saved["optimizer"])
        last = torch.optim.Adam(resumed.parameters()) if is_wrong else optimizer
        train(resumed, last)
    if is_wrong:
        finding = fires("TC602", run.events)
        golden(finding, numbers=False)
        assert mentions(finding, "opt1", "opt2 (Adam)")
    else:
        assert quiet("TC602", run.events) is Verdict.HELD


@pytest.mark.parametrize("case", ["forgotten", "restored", "restored first", "own start"])
def test_a_file_for_the_model_and_one_for_the_optimizer(tmp_path: Path, case: str) -> None:
    model, state = tmp_path / "model.pt", tmp_path / "optimizer.pt"
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(net.parameters())

    def save() -> None:
        torch.save(net.state_dict(), model)
        torch.save(optimizer.state_dict(), state)

    def restore() -> None:
        optimizer.load_state_dict(torch.load(state, weights_only=True))

    save()
    with recording(tmp_path / "run") as run:
        net = nn.Linear(4, 2)
        if case == "own start":  # as in each fold of a cross-validation
            torch.save(net.state_dict(), model)
        optimizer = torch.optim.Adam(net.parameters())
        if case == "restored first":
            restore()
        net.load_state_dict(torch.load(model, weights_only=True))
        if case == "restored":
            restore()
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            save()
    if case == "forgotten":
        finding = fires("TC602", run.events)
        assert mentions(finding, "optimizer.pt")
        assert finding.first_step == 0
    else:
        assert quiet("TC602", run.events) is Verdict.NOT_TRIGGERED


@pytest.mark.parametrize("is_wrong", [True, False])
def test_one_of_two_optimizers_is_loaded_twice(
    tmp_path: Path, is_wrong: bool, golden: Golden
) -> None:
    """A line that was copied, and changed in part."""

    def build() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        nets: list[nn.Module] = [nn.Linear(4, 2), nn.Linear(2, 4)]
        return nets, [torch.optim.Adam(net.parameters()) for net in nets]

    def train(nets: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            nets[1](nets[0](torch.randn(8, 4))).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()

    path = tmp_path / "last.pt"
    with recording(tmp_path / "run") as run:
        nets, optimizers = build()
        train(nets, optimizers)
        names = ("one", "other")
        held = {f"net {name}": net.state_dict() for name, net in zip(names, nets)}
        held |= {name: optimizer.state_dict() for name, optimizer in zip(names, optimizers)}
        torch.save(held, path)
        found = torch.load(path, weights_only=True)
        nets, optimizers = build()
        for name, net in zip(names, nets):
            net.load_state_dict(found[f"net {name}"])
        for index in (0, 0 if is_wrong else 1):
            optimizers[index].load_state_dict(found[names[index]])
        train(nets, optimizers)
    if is_wrong:
        finding = fires("TC602", run.events)
        golden(finding, numbers=False)
        assert mentions(finding, "opt2", "opt3 (Adam)")
    else:
        assert quiet("TC602", run.events) is Verdict.HELD
