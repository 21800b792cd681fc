"""Self times of `traincheck profile` against an outside clock.

In each round a network is trained plainly and then under the profiler, on an idle machine.
The plain program times its own forward and backward. Printed for each: what it needs, and what the
self times of all layers add up to. Medians.

    python -m benchmarks.profile_clock [--rounds 5] [--network gpt]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from benchmarks.harness import run
from tests.profile.networks import (
    GPT,
    Experts,
    Recurrent,
    ResNet18,
    UNet,
    floats,
    of_logits,
    tokens,
)

_STEPS, _STEP = 14, 8
_PHASES = ("forward", "backward")
_Program: TypeAlias = "tuple[Callable[[], nn.Module], Callable[[Any], torch.Tensor]]"

NETWORKS: dict[str, _Program] = {
    "resnet": (ResNet18, lambda m: of_logits(m(floats(8, 3, 64, 64)))),
    "gpt": (lambda: GPT(256, 4), lambda m: of_logits(m(tokens(4, 128)))),
    "lstm": (Recurrent, lambda m: of_logits(m(ids=tokens(64, 100))["logits"])),
    "moe": (lambda: Experts(512), lambda m: of_logits(m(floats(2048, 16)))),
    "unet": (UNet, lambda m: of_logits(m(floats(8, 1, 256, 256)))),
}


def train(name: str) -> dict[str, list[float]]:
    """Milliseconds of the phases of each step."""
    make, loss_of = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    spent: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    for _ in torch.utils.data.DataLoader(torch.arange(_STEPS), batch_size=1):
        optimizer.zero_grad()
        began = time.perf_counter()
        loss = loss_of(model)
        between = time.perf_counter()
        loss.backward()
        ended = time.perf_counter()
        optimizer.step()
        spent["forward"].append(1000 * (between - began))
        spent["backward"].append(1000 * (ended - between))
    return spent


def plain(name: str, folder: Path) -> dict[str, float]:
    """Medians of the phases of the plain program, without its first steps."""
    script = [sys.executable, "-m", "benchmarks.profile_clock", "--train", name]
    spent = json.loads(run(script, cwd=Path.cwd(), out=folder).expect().stdout)
    return {phase: statistics.median(spent[phase][_STEP // 2 :]) for phase in _PHASES}


def profiled(name: str, folder: Path) -> dict[str, float]:
    """Self times of all layers and of what no layer does."""
    made = folder / "profile.json"
    words = [sys.executable, "-m", "traincheck", "profile", "--format", "json", "-o", str(made)]
    words += ["--step", str(_STEP), "--steps", "3", "--trace", str(folder / "trace"), "--"]
    script = [sys.executable, "-m", "benchmarks.profile_clock", "--train", name]
    run([*words, *script], cwd=Path.cwd(), out=folder).expect()
    found = json.loads(made.read_text(encoding="utf-8"))
    layers = [found["outside_modules"], *_layers(found["tree"])]
    return {phase: sum(layer[f"self_{phase}_ms"] for layer in layers) for phase in _PHASES}


def _layers(tree: dict[str, Any]) -> list[dict[str, Any]]:
    below = [one for node in tree.values() for one in _layers(node["children"])]
    return [node["info"] for node in tree.values()] + below


def main() -> None:
    """Print one line a network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", choices=list(NETWORKS), action="append")
    parser.add_argument("--train", choices=list(NETWORKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train)))
        return
    print("network   forward plain / self, ms     ratio   backward plain / self, ms    ratio")
    for name in options.network or NETWORKS:
        truth: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        told: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                for numbers, found in (
                    (truth, plain(name, Path(folder))),
                    (told, profiled(name, Path(folder))),
                ):
                    for phase in _PHASES:
                        numbers[phase].append(found[phase])
        line = f"{name:<8}"
        for phase in _PHASES:
            one, other = statistics.median(truth[phase]), statistics.median(told[phase])
            line += f"  {one:>10.2f} / {other:>10.2f}  {other / one:>8.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
