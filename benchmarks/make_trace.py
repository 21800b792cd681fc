"""Generate a long trace of a healthy training run, for measurements of trace readers.

    python benchmarks/make_trace.py --events 1000000 -o DIR [--ranks N] [--blocks N]

A model of blocks of linear and norm layers under Adam with a schedule: per step the calls and the
gradient, parameter and optimizer state events that recording such a run gives, an evaluation now
and then. The number of events is reached exactly, so the last step may be unfinished.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script
    sys.path.insert(0, str(ROOT))

from tests.builders import BATCH_NORM, LINEAR, TraceBuilder  # noqa: E402
from traincheck.errors import TraincheckError  # noqa: E402
from traincheck.schema.events import Event  # noqa: E402
from traincheck.store.writer import TraceWriter  # noqa: E402

_BLOCK = {
    "fc1.weight": LINEAR,
    "fc1.bias": LINEAR,
    "norm.weight": BATCH_NORM,
    "norm.bias": BATCH_NORM,
    "fc2.weight": LINEAR,
    "fc2.bias": LINEAR,
}
_BUFFERS = {
    "norm.running_mean": BATCH_NORM,
    "norm.running_var": BATCH_NORM,
    "norm.num_batches_tracked": BATCH_NORM,
}
_SCHEDULE_EVERY = 1000  # steps


def training_run(
    rank: int = 0, *, blocks: int = 4, eval_every: int = 50, eval_batches: int = 4
) -> Iterator[list[Event]]:
    """The events of one rank of a run that never ends, step by step."""
    parameters = {f"blocks.{i}.{path}": c for i in range(blocks) for path, c in _BLOCK.items()}
    buffers = {f"blocks.{i}.{path}": c for i in range(blocks) for path, c in _BUFFERS.items()}
    builder = TraceBuilder(rank=rank).process().seed()
    builder.model("Net", parameters, buffers=buffers).optimizer().train()
    step = 0
    while True:
        step += 1
        builder.step(scheduler=step % _SCHEDULE_EVERY == 0)
        if step % eval_every == 0:
            builder.evaluate(eval_batches)
        yield builder.take()


def write(directory: Path, events: int, *, ranks: int = 1, **shape: int) -> int:
    """Write ``events`` events, as evenly over the ranks as their steps allow; tell how many."""
    runs = [training_run(rank, **shape) for rank in range(ranks)]
    each = (event for steps in zip(*runs) for step in steps for event in step)
    written = 0
    with TraceWriter(directory) as writer:
        for event in islice(each, events):
            writer.emit(event)
            written += 1
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path, required=True, help="new run directory")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=4, help="size of the model")
    parser.add_argument("--eval-every", type=int, default=50, help="steps between evaluations")
    options = parser.parse_args(arguments)
    try:
        written = write(
            options.output,
            options.events,
            ranks=options.ranks,
            blocks=options.blocks,
            eval_every=options.eval_every,
        )
    except TraincheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{options.output}: {written:,} events", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
