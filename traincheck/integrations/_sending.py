"""Send the findings of a watch to receivers, which have processes outside the training."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from traincheck.errors import MissingDependencyError

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.receivers.notifier import Notifier

_logger = logging.getLogger("traincheck")


def make_notifier(
    to: Sequence[str], config: Config, directory: Path, *, trace: str
) -> Notifier | None:
    """The notifier of the receivers that are asked for; None if there is none.

    Args:
        to: the receivers, as for ``--to``.
        config: has their settings.
        directory: of the trace.
        trace: where the trace is kept; empty if it is not.

    Raises:
        UsageError: a receiver or a setting is unknown.
    """
    if not to:
        return None
    from traincheck.receivers.messages import RunName
    from traincheck.receivers.notifier import Notifier
    from traincheck.receivers.routes import routes

    run = RunName(id=directory.name, trace=trace)
    return Notifier(
        routes(to, config.sinks, path=str(config.path or "")),
        run,
        partial(_logger.warning, "traincheck: %s"),
    )


def load(*names: str, extra: str) -> ModuleType:
    """The first of these modules that is installed.

    Args:
        *names: of modules, the preferred one first.
        extra: the package to install.

    Raises:
        MissingDependencyError: none is installed.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it is installed, and lacks one of its dependencies
    raise MissingDependencyError(f"{names[0]} is not installed", fix=f"pip install {extra}")
