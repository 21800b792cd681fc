"""Cost of `traincheck profile`: profiled steps, and the steps around them.

Variants take turns, step by step: the plain program, a session that profiles no step, and profiled
steps. CPU time of the thread, medians.

    python -m benchmarks.profile_cost [--rounds 20] [--network gpt]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.profile.networks import GPT, NETWORKS, of_logits, tokens
from traincheck.collect.launch.settings import Settings
from traincheck.collect.session.attach import WatchedObjects, attach
from traincheck.collect.session.session import Session
from traincheck.schema.claims import Needs

_STEPS = 12  # of a variant in a round
_FIRST = 4  # the first ones that are measured
_FAR = 1 << 30


def larger() -> tuple[Callable[[], nn.Module], Callable[[Any], torch.Tensor]]:
    """A GPT of about 3 M parameters, whose step takes about 200 ms on one core."""
    return lambda: GPT(256, 4), lambda model: of_logits(model(tokens(4, 128)))


def measured(
    make: Callable[[], nn.Module],
    loss_of: Callable[[Any], torch.Tensor],
    profile: tuple[int, int] | None,
) -> list[float]:
    """Milliseconds of CPU time of the measured steps of one program."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(torch.arange(_STEPS), batch_size=1)
    with tempfile.TemporaryDirectory() as folder:
        session = None if profile is None else recorded(Path(folder), profile, model, optimizer)
        moments = []
        for _ in data:
            moments.append(time.process_time())
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        if session is not None:
            session.stop()
    spent = [1000 * (after - before) for before, after in pairwise(moments)]
    return spent[_FIRST:]


def recorded(
    folder: Path, profile: tuple[int, int], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Session:
    """A running session that profiles these steps."""
    needs = Needs(kinds=frozenset({"profile"}))
    session = Session(Settings(directory=str(folder), run_id="cost", needs=needs, profile=profile))
    session.start()
    subjects = WatchedObjects()
    subjects.add_all([model, optimizer], is_strict=True)
    attach(session, subjects)
    return session


def main() -> None:
    """Print one line a network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--network", choices=[*NETWORKS, "larger gpt"], action="append")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    networks = {**NETWORKS, "larger gpt": larger()}
    print("network        plain ms   other steps   profiled steps")
    for name in chosen.network or ["moe", "gpt", "resnet", "larger gpt"]:
        make, loss_of = networks[name]
        variants: dict[str, tuple[int, int] | None] = {
            "plain": None,
            "other": (_FAR, 1),
            "profiled": (_FIRST - 1, _STEPS),
        }
        found: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(chosen.rounds):
            for variant, window in variants.items():
                found[variant] += measured(make, loss_of, window)
        plain, other, profiled = (statistics.median(found[variant]) for variant in variants)
        print(f"{name:<12} {plain:>10.2f} {other / plain:>13.3f} {profiled / plain:>16.2f}")


if __name__ == "__main__":
    main()
