"""Operating systems on which programs can be recorded. Does not import torch."""

from __future__ import annotations

import sys

from traincheck.errors import LaunchError


def refuse_other_systems() -> None:
    """Recording needs Linux: /proc, fork, priorities of threads.

    Raises:
        LaunchError: this is another operating system.
    """
    if sys.platform != "linux":
        raise LaunchError(
            f"recording works on Linux only; this system is {sys.platform}",
            fix="record on Linux, for example in a container or WSL 2; traincheck-check, "
            "traincheck-infer, traincheck trace and traincheck invariants read its traces here",
        )
