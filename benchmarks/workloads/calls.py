"""Many calls of one cheap function: what recording one costs. ``UP_CALLS`` calls in each batch."""

import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import env

BATCHES = 7


def main() -> None:
    torch.set_num_threads(1)
    calls = env("CALLS", 5000, int)
    x = torch.ones(4)
    ns_per_call: list[float] = []
    for _ in range(BATCHES):
        began = time.thread_time_ns()
        for _ in range(calls):
            F.relu(x)
        ns_per_call.append((time.thread_time_ns() - began) / calls)
    times = {"ns": ns_per_call, "calls": calls * BATCHES}
    Path(os.environ["UP_TIMES"]).write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    main()
