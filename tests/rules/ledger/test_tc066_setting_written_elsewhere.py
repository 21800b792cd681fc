"""TC066: a learning rate that is set where no optimizer reads it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checking import fires, net, quiet
from tests.golden import mentions
from tests.rules.ledger.programs import model, recorded, set_rate, train
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.loads import STATE_DICT, IneffectiveWrite

WRITE = IneffectiveWrite("opt0", STATE_DICT, "lr", "0.1", "0.01", "0.1", "train.py:20")
BROKEN = net().steps(2).mark(WRITE.text, **WRITE.data()).steps(2).build()


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net_of_program = model()
    return net_of_program, torch.optim.SGD(net_of_program.parameters(), lr=0.1, momentum=0.9)


def in_a_copy() -> None:
    trained, optimizer = made()
    train(
        trained,
        optimizer,
        before=lambda step: set_rate(optimizer.state_dict()["param_groups"], 0.1 * 0.5**step),
    )


def in_defaults() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    optimizer.defaults["lr"] = 0.01
    train(trained, optimizer)


def in_an_attribute() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    optimizer.learning_rate = 0.01  # type: ignore[attr-defined]
    train(trained, optimizer)


def under_another_key() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    for group in optimizer.param_groups:
        group["learning_rate"] = 0.01
    train(trained, optimizer)


def test_fires_on_a_written_copy() -> None:
    finding = fires("TC066", BROKEN)
    assert (finding.first_step, finding.subject.variable, finding.violations) == (1, "opt0", 1)
    assert mentions(finding, "0.01", "train.py:20")


@pytest.mark.parametrize("program", [in_a_copy, in_defaults, in_an_attribute, under_another_key])
def test_fires_on_real_programs(tmp_path: Path, program: Callable[[], None]) -> None:
    assert mentions(fires("TC066", recorded(tmp_path, program)), "stays 0.1")


def in_the_groups() -> None:
    trained, optimizer = made()
    train(trained, optimizer, before=lambda step: set_rate(optimizer.param_groups, 0.5**step))


def loaded_again() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    state = optimizer.state_dict()
    set_rate(state["param_groups"], 0.01)
    optimizer.load_state_dict(state)
    train(trained, optimizer)


def written_for_a_file() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    state = optimizer.state_dict()
    set_rate(state["param_groups"], 0.01)
    torch.save(state, io.BytesIO())
    train(trained, optimizer)


def printed() -> None:
    trained, optimizer = made()
    train(trained, optimizer, before=lambda _: optimizer.state_dict()["param_groups"][0]["lr"])


def everywhere() -> None:
    trained, optimizer = made()
    train(trained, optimizer, 2)
    set_rate([optimizer.defaults, *optimizer.param_groups], 0.01)
    train(trained, optimizer)


def scheduled() -> None:
    trained, optimizer = made()
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=9)
    train(trained, optimizer, after=lambda _: cycle.step())


@pytest.mark.parametrize(
    "program",
    [in_the_groups, loaded_again, written_for_a_file, printed, everywhere, scheduled],
)
def test_quiet_on_writes_with_effect(tmp_path: Path, program: Callable[[], None]) -> None:
    assert quiet("TC066", recorded(tmp_path, program)) is Verdict.HELD
