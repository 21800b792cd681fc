"""Send the findings of a watch to sinks, which have processes outside the training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.sinks.notifier import Notifier

_logger = logging.getLogger("traincheck")


def make_notifier(
    to: Sequence[str], config: Config, directory: Path, *, trace: str
) -> Notifier | None:
    """The notifier of the sinks that are asked for; None if there is none.

    Args:
        to: the sinks, as for ``--to``.
        config: has their settings.
        directory: of the trace.
        trace: where the trace is kept; empty if it is not.

    Raises:
        UsageError: a sink or a setting is unknown.
    """
    if not to:
        return None
    from traincheck.sinks.messages import RunName
    from traincheck.sinks.notifier import Notifier
    from traincheck.sinks.routes import routes

    run = RunName(id=directory.name, trace=trace)
    return Notifier(
        routes(to, config.sinks, path=str(config.path or "")),
        run,
        partial(_logger.warning, "traincheck: %s"),
    )
