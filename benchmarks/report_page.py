"""Cost of `traincheck report` on a large run: CPU seconds, peak memory, size of the page.

    python -m benchmarks.report_page [--steps N] [--layers N] [--ranks N] [--keep FOLDER]
        [--json FILE]

The trace is generated: one weight a layer, whose gradient and value are recorded in every step. The
ranks are wrapped in DistributedDataParallel, so rules compare them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.inference import count_events, figures
from tests.builders import LINEAR, SGD, Model, TraceBuilder
from tests.ranks import RankBuilder
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.torch_api import Families
from traincheck.store.writer import TraceWriter

SPIKE = 1e4  # a gradient norm, among others near 1
_TIMEOUT_S = 600
TARGETS = {"page": "<= 1500 kB", "report": "<= 15 s CPU, 400 MB"}


class Recorded(RankBuilder):
    """Variables have norms, as `traincheck run` records them; layers are not called one by one.

    Attributes:
        spike: step and layer of a gradient norm of `SPIKE`; None for none.
    """

    spike: tuple[int, str] | None = None

    def add(self, event_type: Any, **fields: Any) -> TraceBuilder:
        """An event; that of a variable with its norm."""
        super().add(event_type, **fields)
        event = self.events[-1]
        if isinstance(event, StateEvent) and event.summary is not None:
            stats = {"norm": self._norm(event), "nonfinite": 0}
            self.events[-1] = event.replace(summary=event.summary.replace(stats=stats))
        return self

    def _norm(self, event: StateEvent) -> float:
        layer = event.name.rpartition(".")[0]
        if event.role == "gradient" and self.spike == (event.step, layer):
            return SPIKE
        phase = int(layer.rpartition(".")[2] or 0) + self.step_number / 90
        return 1.5 + math.sin(phase + self.rank / 50)

    def root_forward(self, model: Model, grad: bool, buffers: bool, batch_size: int) -> None:
        """The call of the root module alone."""
        if self.wrapped:
            super().root_forward(model, grad, buffers, batch_size)
            return
        if grad:
            self.count(forward=1)
        self.call(
            f"{model.cls}.forward",
            module=model.name,
            root=True,
            training=model.training,
            grad_enabled=grad,
            family=Families.MODULE,
            where="train.py:82",
        )


def steps_of(
    layers: int, rank: int = 0, ranks: int = 1, spike: tuple[int, str] | None = None
) -> Iterator[list[Event]]:
    """The events of one rank of a healthy run that never ends, step by step."""
    weights = {f"layers.{index}.weight": LINEAR for index in range(layers)}
    builder = Recorded(rank, ranks)
    builder.spike = spike
    builder.seed().model("Net", weights)
    if ranks > 1:
        builder.wrap()
    builder.optimizer(SGD).train()
    for step in itertools.count(1):
        builder.step()
        if step % 100 == 0:
            builder.evaluate(1)
        yield builder.take()


def write(
    directory: Path,
    steps: int,
    *,
    layers: int = 200,
    ranks: int = 2,
    spike: tuple[int, str] | None = None,
) -> None:
    """Write a run of so many steps. spike: step and layer of one large gradient of all ranks."""
    runs = [steps_of(layers, rank, ranks, spike) for rank in range(ranks)]
    with TraceWriter(directory) as writer:
        for _ in range(steps):
            for run in runs:
                for event in next(run):
                    writer.emit(event)


def measure(trace: Path, page: Path) -> dict[str, Any]:
    """Cost of the page of one run."""
    command = [sys.executable, "-m", "traincheck", "report", trace, "-o", page]
    done = harness.run(command, timeout_s=_TIMEOUT_S).expect()
    return figures(done, count_events(trace)) | {"kB": round(page.stat().st_size / 1e3)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder of the trace, used again when there")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        trace = folder / f"steps-{options.steps}-{options.layers}-{options.ranks}"
        if not trace.exists():
            write(trace, options.steps, layers=options.layers, ranks=options.ranks)
        result = measure(trace, folder / "report.html")
    rows = [[result[key] for key in ("events", "cpu_s", "wall_s", "peak_mb", "kB")]]
    print(harness.table(["events", "CPU s", "wall s", "peak MB", "page kB"], rows))
    print("".join(f"\n{name}: {bar}" for name, bar in TARGETS.items()))
    harness.write_json(options.json, {"machine": harness.describe_machine(), "report": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
