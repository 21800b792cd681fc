"""Options that send findings to receivers, shared by the commands that check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import _completion

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.receivers.notifier import Notifier
    from traincheck.receivers.routes import Route
    from traincheck.schema.findings import Finding

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_to_option = click.option(
    "--to",
    metavar="NAME[=TARGET]",
    shell_complete=_completion.receivers,
    multiple=True,
    help="Send findings and the report to wandb, mlflow, tensorboard, webhook=URL, "
    "prometheus=FILE.prom, logging=FILE, or a receiver that an installed package adds. Repeatable. "
    "[default: the [sinks] of the configuration; none: nowhere]",
)
_on_finding_option = click.option(
    "--on-finding",
    metavar="COMMAND",
    multiple=True,
    help="Run COMMAND for each finding, as soon as it is known: with TRAINCHECK_CODE, "
    "TRAINCHECK_TEXT and others in its environment, and JSON on stdin. Repeatable.",
)


def receiver_options(command: _Decorated) -> _Decorated:
    """Adds --to and --on-finding."""
    return _to_option(_on_finding_option(command))


def chosen_routes(options: dict[str, Any], config: Config) -> list[Route]:
    """The receivers of the options and the configuration.

    Raises:
        UsageError: a receiver or a setting is unknown.
    """
    if not (options["to"] or options["on_finding"] or config.sinks):
        return []
    from traincheck.receivers.routes import routes

    return routes(options["to"], config.sinks, options["on_finding"], path=str(config.path or ""))


@contextlib.contextmanager
def notifying(
    routes: list[Route],
    directory: Path,
    *,
    is_known: Callable[[Finding], bool] | None = None,
    is_silent: bool = False,
) -> Iterator[Notifier]:
    """The notifier of a run. At the end, receivers are waited for; Ctrl-C ends the waiting.

    is_known: whether a finding is in the baseline.
    is_silent: hold lines for the user back until the notifier may speak.
    """
    from traincheck.receivers.messages import RunName
    from traincheck.receivers.notifier import Notifier

    from ._terminal import write_message

    run = RunName(id=directory.absolute().name, trace=str(directory.absolute()))
    tell = partial(write_message, is_written=False)
    notifier = Notifier(routes, run, tell, is_known=is_known, is_silent=is_silent)
    try:
        yield notifier
    finally:
        try:
            notifier.close()
        except KeyboardInterrupt:  # the result of the check stands
            tell("receivers: interrupted; messages that are not sent yet are lost")
