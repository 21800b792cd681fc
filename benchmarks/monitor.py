"""Cost of monitoring a model in its process, against torch-module-monitor.

    python -m benchmarks.monitor [--rounds N] [--peer PYTHON] [--json FILE]

Two copies of a model train in one process and take turns, step by step: one is monitored in each
step, one is plain. The table shows the median ratio of their CPU times. ``--peer`` is the Python of
a virtual environment that holds torch-module-monitor==0.1.0, which runs the same loop in the same
round. ``idle`` is a monitor whose step is never due.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = ("basic", "reference", "coordinates", "idle")
OURS, THEIRS = "traincheck", "torch_module_monitor"
SETTLE = 3
STEPS = {"mlp": 120, "transformer": 14}


def mlp(torch: Any) -> tuple[Any, Callable[[], Any]]:
    """Three layers, batches of 64 rows."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return model, lambda: torch.randn(64, 64)


def transformer(torch: Any) -> tuple[Any, Callable[[], Any]]:
    """5 million parameters, batches of 8 times 64 positions."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(256), nn.LayerNorm(256)
            self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
            self.up, self.act, self.down = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 8, 32)).permute(2, 0, 3, 1, 4)
            found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(found.transpose(1, 2).flatten(2))
            return x + self.down(self.act(self.up(self.norm2(x))))

    model = nn.Sequential(nn.Linear(64, 256), *(Block() for _ in range(6)), nn.Linear(256, 64))
    return model, lambda: torch.randn(8, 64, 64)


class Loop:
    """One copy of a model and its training."""

    def __init__(self, torch: Any, model: Any) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step(self, batch: Any, monitor: Any = None, number: int = 0, check: Any = None) -> float:
        """Train on a batch; returns the CPU seconds."""
        begin = time.process_time()
        if monitor is not None:
            monitor.begin_step(number)
        if monitor is not None and monitor.has_reference_module() and monitor.is_monitoring():
            monitor.reference_module(batch)
        self.model(batch).pow(2).mean().backward()
        if monitor is not None:
            monitor.monitor_parameters()
            monitor.monitor_gradients()
            if check is not None:
                check.refined_coordinate_check()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if monitor is not None:
            monitor.end_step()
        return time.process_time() - begin


def monitored(library: Any, model: Any, mode: str) -> tuple[Any, Any]:
    """A monitor as a mode asks for it, and its coordinate check."""
    make = getattr(library, "ModuleMonitor", None) or library.Monitor
    monitor = make(monitor_step_fn=lambda step: mode != "idle")
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.add_parameter_metric("norm", lambda x: x.norm())
    monitor.add_gradient_metric("norm", lambda x: x.norm())
    if mode in ("basic", "idle"):
        return monitor, None
    monitor.set_reference_module(copy.deepcopy(model).requires_grad_(False))
    monitor.add_activation_difference_metric("l2", lambda x, y: (x - y).norm(dim=-1))
    monitor.add_parameter_difference_metric("l2", lambda x, y: (x - y).norm())
    return monitor, library.RefinedCoordinateCheck(monitor) if mode == "coordinates" else None


def measure(name: str, steps: int) -> dict[str, dict[str, float]]:
    """Program and mode -> median ratio of a monitored step to a plain one."""
    import torch

    torch.set_num_threads(1)
    library = importlib.import_module(name)
    out: dict[str, dict[str, float]] = {}
    for program in (mlp, transformer):
        model, batch = program(torch)
        out[program.__name__] = {}
        for mode in MODES:
            plain, other = Loop(torch, copy.deepcopy(model)), Loop(torch, copy.deepcopy(model))
            monitor, check = monitored(library, other.model, mode)
            ratios = []
            for number in range(STEPS[program.__name__] * steps):
                x = batch()
                base = plain.step(x)
                cost = other.step(x, monitor, number, check)
                if number >= SETTLE:
                    ratios.append(cost / base)
            out[program.__name__][mode] = statistics.median(ratios)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1, help="multiplies the steps of a round")
    parser.add_argument("--peer", help="Python that has torch-module-monitor")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(measure(options.library, options.steps)))
        return
    tools = {OURS: sys.executable, **({THEIRS: options.peer} if options.peer else {})}
    found: dict[str, list[dict[str, dict[str, float]]]] = {tool: [] for tool in tools}
    for _ in range(options.rounds):
        for tool, python in tools.items():
            command = [python, __file__, "--library", tool, "--steps", str(options.steps)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[tool].append(json.loads(done.stdout.splitlines()[-1]))
    medians = {
        tool: {p: {m: statistics.median(r[p][m] for r in rounds) for m in MODES} for p in STEPS}
        for tool, rounds in found.items()
    }
    for tool, programs in medians.items():
        for program, modes in programs.items():
            print(f"{tool:22}{program:14}", "  ".join(f"{m} {v:.3f}" for m, v in modes.items()))
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
