"""Results of experiments: written by hand, and those of real programs that are probed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.checking import net
from tests.collect.recording import recording
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.probes.event import ProbeEvent

Loss = Callable[[nn.Module, int], torch.Tensor]


def probed(name: str, status: str = "moved", *, times: int = 2, **fields: Any) -> list[Event]:
    """A short run with results of one experiment."""
    events = net().steps(2)
    for _ in range(times):
        events.add(ProbeEvent, name=name, model="Net", status=status, **fields).steps(2)
    return events.build()


def trained(
    folder: Path, model: nn.Module, loss: Loss, *, steps: int = 12, **options: Any
) -> list[Event]:
    """A real program, recorded with its probes, from seed 0."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with recording(folder, probe=True, needs=Needs(), **options) as run:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
    return run.events


def results(events: list[Event], name: str) -> Iterator[ProbeEvent]:
    """The results of one experiment."""
    return (e for e in events if isinstance(e, ProbeEvent) and e.name == name)


def classified(model: nn.Module, step: int) -> torch.Tensor:
    """The loss of a classifier of 8 numbers into 3 classes."""
    return nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,)))
