"""TC201 on loops of all kinds, each recorded whole and in single steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.checking import BY_CODE, report_of
from tests.collect.recording import recording

DEEDS = ("zero", "zeros", "model", "hand", "backward", "both", "step")
STEPS = 13


class Deed(NamedTuple):
    """What one of two models, or its optimizer, does in every iteration, or in each ``every``."""

    deed: str
    index: int
    every: int


def a_loop(chance: random.Random) -> list[Deed]:
    """Deeds in any order, among them a backward pass and a step."""
    deeds = ["backward", "step", *chance.choices(DEEDS, k=chance.randint(1, 6))]
    chance.shuffle(deeds)
    return [Deed(deed, chance.randrange(2), chance.choice((1, 1, 1, 2, 3))) for deed in deeds]


def play(loop: list[Deed]) -> None:
    torch.manual_seed(0)
    models = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models]
    losses = [lambda x, m=m: m(x).pow(2).sum() for m in models]
    for number, x in enumerate(torch.utils.data.DataLoader(torch.randn(STEPS, 3))):
        for deed, index, every in loop:
            if number % every:
                continue
            if deed == "backward":
                losses[index](x).backward()
            elif deed == "both":
                (losses[0](x) + losses[1](x)).backward()
            elif deed == "step":
                optimizers[index].step()
            elif deed == "model":
                models[index].zero_grad()
            elif deed == "hand":
                for parameter in models[index].parameters():
                    parameter.grad = None
            else:
                optimizers[index].zero_grad(set_to_none=deed == "zero")


def blamed(folder: Path, loop: list[Deed], every: int) -> set[str]:
    """Variables that TC201 names."""
    with recording(folder, every=every) as run:
        play(loop)
    findings = report_of(run.events, [BY_CODE["TC201"]]).findings
    return {name for finding in findings for name in finding.variables}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_single_steps_tell_nothing_that_all_steps_together_do_not(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    found = 0
    for number in range(20):
        loop, every = a_loop(chance), chance.randint(2, 4)
        whole = blamed(tmp_path / f"whole{number}", loop, 1)
        single = blamed(tmp_path / f"single{number}", loop, every)
        assert single <= whole, (loop, every)
        found += bool(single)
    assert found >= 2
