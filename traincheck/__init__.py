"""traincheck: finds silent bugs in PyTorch training.

The command ``traincheck run train.py`` checks an unedited script. Inside a process, such as a
notebook, use `watch`::

    with traincheck.watch(model, optimizer) as run:
        train(model, optimizer, loader)
    run.findings

`open` gives the tables of a recorded run as pandas DataFrames::

    traincheck.open("traces/run").calls(steps=range(10), name="*zero_grad")

`profile` measures the layers of the training steps in a ``with`` block.

`step` marks the end of a training step, `mark` adds a note to the trace, and `annotate_stage` sets
the stage. `TrainingHalted` is raised by a watch with ``halt=True``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from traincheck.version import VERSION

if TYPE_CHECKING:
    from traincheck.integrations.watching import TrainingHalted as TrainingHalted
    from traincheck.integrations.watching import watch as watch
    from traincheck.profile.in_process import profile as profile
    from traincheck.store.tables import open as open

__version__ = VERSION
__all__ = ["TrainingHalted", "__version__", "annotate_stage", "mark", "step", "watch"]

# Stage names of the research release, and of traincheck.
_STAGES = {
    "init": "init",
    "training": "train",
    "evaluation": "eval",
    "inference": "eval",
    "testing": "eval",
    "checkpointing": "checkpoint",
}


def step() -> None:
    """Mark the end of a training step explicitly.

    From the first call on, only these calls end steps. Call it once before the loop, so that the
    first step is counted this way too. Does nothing in a process that is not watched.
    """
    current = sys.modules.get("traincheck.collect.active_session")
    if current is not None and current.CURRENT.session is not None:
        current.CURRENT.session.user_marks.mark_step()


def mark(text: str, **data: Any) -> None:
    """Add a note to the trace, at the current step. Does nothing in a process without a trace.

    Args:
        text: the text of the note, such as ``"new curriculum"``.
        data: numbers, text, and lists and dicts of these; other values become text.
    """
    current = sys.modules.get("traincheck.collect.active_session")
    if current is not None and current.CURRENT.session is not None:
        current.CURRENT.session.user_marks.annotate(text, data)


def annotate_stage(stage_name: str) -> None:
    """Set the stage of the next events, until a forward or an optimizer step shows another one.

    Programs written for the research release call this. Does nothing in a process that is not
    recorded.

    Args:
        stage_name: "init", "training", "evaluation", "inference", "testing" or "checkpointing".
            Another name becomes a mark.
    """
    stage = _STAGES.get(stage_name)
    if stage is None:
        mark(stage_name)
        return
    current = sys.modules.get("traincheck.collect.active_session")
    if current is not None:
        current.CURRENT.enter_stage(stage)


def __getattr__(name: str) -> Any:
    """Load `watch`, which needs torch, its exception, `profile` and `open` on first access.

    `open` is not in ``__all__``: a star import must leave Python's own as it is.
    """
    if name == "open":
        return importlib.import_module("traincheck.store.tables").open
    if name == "profile":
        return importlib.import_module("traincheck.profile")  # a package that can be called
    if name in ("TrainingHalted", "watch"):
        return getattr(importlib.import_module("traincheck.integrations.watching"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Includes the names that are loaded on access, so that ``help(traincheck)`` shows them."""
    return sorted({*globals(), *__all__, "open", "profile"})
