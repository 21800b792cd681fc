"""A helper for loops with Accelerate: watch what an Accelerator has prepared."""

from __future__ import annotations

from typing import Any

from traincheck.errors import UsageError
from traincheck.integrations._sending import load
from traincheck.integrations.watching import Options, Watch

_Accelerator: Any = load("accelerate", extra="accelerate").Accelerator


def watch(accelerator: Any, **options: Any) -> Watch:
    """Check the training of an Accelerator: a context manager. Create it after ``prepare``.

    Args:
        accelerator: its models and optimizers are watched.
        **options: those of ``traincheck.watch``.

    Raises:
        UsageError: not an Accelerator, or it has not prepared anything yet.
    """
    if not isinstance(accelerator, _Accelerator):
        raise UsageError(
            f"a {type(accelerator).__name__} is not an Accelerator",
            fix="traincheck.watch(model, optimizer) watches other loops",
        )
    # There is no public access to these; they have had these names in all versions.
    subjects = (*accelerator._models, *accelerator._optimizers)
    if not subjects:
        raise UsageError(
            "the Accelerator has not prepared anything yet",
            fix="call accelerator.prepare(model, optimizer, ...) before watch(accelerator)",
        )
    return Watch(subjects, Options.of(options))
