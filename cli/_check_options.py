"""Options that select checks, shared by the commands that check. They extend a configuration.

Only the command line is read here; traincheck.config and traincheck.api interpret the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traincheck.errors import UsageError
from traincheck.schema.findings import SEVERITIES, Presentation

from . import _completion

if TYPE_CHECKING:
    from traincheck.config import Config

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

select_option = click.option(
    "--select",
    metavar="CODE",
    shell_complete=_completion.codes,
    multiple=True,
    help="Check only these rules (by code or prefix, such as TC201 or TC2) and relations (by "
    "name). Repeatable; separate several with commas.",
)
ignore_option = click.option(
    "--ignore",
    metavar="CODE",
    shell_complete=_completion.codes,
    multiple=True,
    help="Skip these rules and relations. Takes the same values as --select.",
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES[::-1]),
    help="Exit with 1 if a finding has at least this severity. [default: warning]",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    shell_complete=_completion.files,
    help="Configuration file. [default: the nearest traincheck.toml, or pyproject.toml with "
    "[tool.traincheck], in this directory or above]",
)


allow_empty_option = click.option(
    "--allow-empty",
    is_flag=True,
    help="Exit with 0, not 4, when nothing was checked.",
)
require_steps_option = click.option(
    "--require-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Exit with 4 when fewer than N training steps were recorded.",
)


stall_option = click.option(
    "--stall-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="In a live run, report a rank that records nothing for this long while other ranks wait "
    "for it in a collective.",
)


def selection_options(command: _Decorated) -> _Decorated:
    """Adds --select, --ignore, --fail-on, --allow-empty, --require-steps and --config."""
    for option in (
        config_option,
        require_steps_option,
        allow_empty_option,
        fail_on_option,
        ignore_option,
        select_option,
    ):
        command = option(command)
    return command


def configuration(options: dict[str, Any]) -> Config:
    """The configuration, with the options of the command line, which override it.

    Raises:
        UsageError: the file cannot be used.
    """
    from traincheck.config import load_config

    config = load_config(Path(options["config"]) if options.get("config") else None)
    config = config.narrowed(codes(options.get("select") or ()), codes(options.get("ignore") or ()))
    return config.replace(fail_on=options.get("fail_on") or config.fail_on)


def presentation(options: dict[str, Any], config: Config) -> Presentation:
    """The presentation and the failing severity, by the options of the command.

    Raises:
        UsageError: two options contradict each other.
    """
    if options["allow_empty"] and options["require_steps"]:
        raise UsageError(
            "--allow-empty and --require-steps cannot be used together", fix="leave one of them out"
        )
    return Presentation(
        fail_on=config.fail_on,
        info=options.get("show_info", False),
        suppressed=options.get("show_suppressed", False),
        verbose=options.get("verbose", False),
        allow_empty=options["allow_empty"],
        require_steps=options["require_steps"] or 0,
    )


def codes(values: Sequence[str]) -> tuple[str, ...]:
    """Codes, each option one or several with commas between; those of rules in any case."""
    found = [code.strip() for value in values for code in value.split(",") if code.strip()]
    return tuple(code.upper() if code.upper().startswith("TC") else code for code in found)
