"""Run program/train.py beside this file with other seeds than it asks for.

The healthy twin of a case is learned from with these and checked with its own.
"""

import os
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

SHIFT = 1000 * int(os.environ.get("BENCH_RESEEDING", "1"))


def shifted(seed_with: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a seed that is another."""

    def seed(value: Any = None, *args: Any, **kwargs: Any) -> Any:
        return seed_with(value + SHIFT if isinstance(value, int) else value, *args, **kwargs)

    return seed


torch.manual_seed = shifted(torch.manual_seed)
np.random.seed = shifted(np.random.seed)
np.random.default_rng = shifted(np.random.default_rng)
random.seed = shifted(random.seed)

# Of the same name as this file: what is learned of a program is kept to programs of its name.
script = Path(__file__)
runpy.run_path(str(script.with_name("program") / script.name), run_name="__main__")
