"""traincheck: finds silent bugs in PyTorch training.

The command ``traincheck run train.py`` checks an unedited script. Inside a process, such as a
notebook, use `watch`::

    with traincheck.watch(model, optimizer) as run:
        train(model, optimizer, loader)
    run.findings

`open` gives the tables of a recorded run as pandas DataFrames::

    traincheck.open("traces/run").calls(steps=range(10), name="*zero_grad")

`diff` finds the first difference between two recorded runs.
`profile` measures the layers of the training steps in a ``with`` block.
`probe` tests a model by experiments on copies of it.

`step` marks the end of a training step, `mark` adds a note to the trace, and `annotate_stage` sets
the stage. `TrainingHalted` is raised by a watch with ``halt=True``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from traincheck.version import VERSION

if TYPE_CHECKING:
    from traincheck.diff.library import diff as diff
    from traincheck.integrations.monitor import Monitor as Monitor
    from traincheck.integrations.monitor_attention import (
        RefinedCoordinateCheck as RefinedCoordinateCheck,
    )
    from traincheck.integrations.monitor_attention import (
        monitor_scaled_dot_product_attention as monitor_scaled_dot_product_attention,
    )
    from traincheck.integrations.monitor_mixin import MonitorMixin as MonitorMixin
    from traincheck.integrations.probing import probe as probe
    from traincheck.integrations.watching import TrainingHalted as TrainingHalted
    from traincheck.integrations.watching import watch as watch
    from traincheck.profile.in_process import profile as profile
    from traincheck.store.tables import open as open

_F = TypeVar("_F", bound=Callable[..., Any])
__version__ = VERSION
__all__ = [
    "Monitor",
    "MonitorMixin",
    "RefinedCoordinateCheck",
    "TrainingHalted",
    "__version__",
    "annotate_stage",
    "mark",
    "metric",
    "monitor_scaled_dot_product_attention",
    "probe",
    "read_metrics",
    "step",
    "watch",
]

# Names that are loaded on first access: torch, pandas and the checks are not needed to import us.
_LATE = {
    "Monitor": "traincheck.integrations.monitor",
    "MonitorMixin": "traincheck.integrations.monitor_mixin",
    "RefinedCoordinateCheck": "traincheck.integrations.monitor_attention",
    "TrainingHalted": "traincheck.integrations.watching",
    "monitor_scaled_dot_product_attention": "traincheck.integrations.monitor_attention",
    "open": "traincheck.store.tables",
    "probe": "traincheck.integrations.probing",
    "read_metrics": "traincheck.integrations.monitor_results",
    "watch": "traincheck.integrations.watching",
}
_CALLED = ("diff", "profile")  # packages that are also functions

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


def metric(
    on: str = "activation", *, name: str = "", regex: str = ".*", per: str | int | None = None
) -> Callable[[_F], _F]:
    """Mark a function of a plugin file as a metric of ``traincheck monitor --plugin FILE``.

    The function gets a tensor, and returns a number, a tensor of values or a mapping of these.

    Args:
        on: "activation", "parameter" or "gradient".
        name: last part of its keys; empty for the name of the function.
        regex: what the name of a module or variable must match from its beginning.
        per: "row", "channel", "feature" or a dimension: one number for each index of it.
    """

    def mark_metric(function: _F) -> _F:
        values = {"on": on, "name": name or function.__name__, "regex": regex, "per": per}
        function.__traincheck_metric__ = values  # type: ignore[attr-defined]
        return function

    return mark_metric


def load_ipython_extension(shell: Any) -> None:
    """Add the magic ``%%traincheck``; IPython calls this for ``%load_ext traincheck``."""
    importlib.import_module("traincheck.integrations.notebook").load(shell)


def __getattr__(name: str) -> Any:
    """Load a name of `_LATE`, or a package that can be called, on first access.

    `open` is not in ``__all__``: a star import must leave Python's own as it is.
    """
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    if name in _CALLED:
        return importlib.import_module(f"traincheck.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Includes the names that are loaded on access, so that ``help(traincheck)`` shows them."""
    return sorted({*globals(), *__all__, *_CALLED, "open"})
