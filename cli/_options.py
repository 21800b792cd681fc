"""Options that several commands have, in one table; and what those about checks mean.

Only the command line is read here; traincheck.config and traincheck.api interpret the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from traincheck.collect.launch.settings import MOST_STEPS
from traincheck.errors import UsageError
from traincheck.presets import preset_names
from traincheck.report.registry import FORMATS
from traincheck.schema.findings import SEVERITIES, Presentation

from . import _completion

if TYPE_CHECKING:
    from traincheck.config import CollectConfig, Config, MonitorConfig

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_Table = TypeVar("_Table", "CollectConfig", "MonitorConfig")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]*)")
_LEAST = 10**6  # of a trace: less would not hold the steps that are being checked
FORMAT_NAMES = f"{', '.join(FORMATS.built_in)}, or a format that an installed package adds"


def _known_tracker(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse a tracker that there is not before the work begins."""
    if name is not None:
        from traincheck.metrics.trackers import TRACKERS

        TRACKERS.find(name)
    return name


def _row(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, settings


_FILE: dict[str, Any] = {"metavar": "FILE", "shell_complete": _completion.files}
_FOLDER: dict[str, Any] = {"metavar": "DIR", "shell_complete": _completion.folders}
_CODES: dict[str, Any] = {
    "metavar": "CODE", "shell_complete": _completion.codes, "multiple": True,
}  # fmt: skip
# Name -> the names of the option, and its settings.
_TABLE = {
    "output": _row(
        "-o", "--output", **_FILE, help="Write the report to this file. [default: stdout]"
    ),
    "output_folder": _row(
        "-o",
        "--output",
        **_FOLDER,
        help="New folder for the trace. [default: a new one under traces/]",
    ),
    "force": _row("--force", is_flag=True, help="Overwrite the output file if it exists."),
    "form": _row("--format", "form", show_default=True, help="Format of the output."),
    "traces": _row(
        "-t",
        "--trace",
        "traces",
        **_FOLDER,
        multiple=True,
        help="Reference run, or folder of runs. Repeatable.",
    ),
    "invariants": _row(
        "-i",
        "--invariants",
        metavar="INV",
        shell_complete=_completion.files,
        multiple=True,
        help="Check the invariants of this file (from traincheck-infer). Repeatable.",
    ),
    "presets": _row(
        "--preset",
        "presets",
        metavar="NAME",
        shell_complete=_completion.presets,
        multiple=True,
        help=f"Check invariants shipped with traincheck: {', '.join(preset_names())}. Repeatable.",
    ),
    "no_rules": _row("--no-rules", is_flag=True, help="Skip the built-in rules."),
    "every": _row(
        "--every",
        type=click.IntRange(min=1, max=MOST_STEPS),
        metavar="N",
        help="Check every N-th step.",
    ),
    "warmup": _row(
        "--warmup",
        type=click.IntRange(min=0, max=MOST_STEPS),
        metavar="N",
        help="Check the first N steps in full, regardless of --every. Some bugs need consecutive "
        "steps to show (for example gradients cleared before they are used).",
    ),
    "probe": _row(
        "--probe",
        is_flag=True,
        help="Also make experiments on copies of the process: see traincheck probe.",
    ),
    "no_source": _row(
        "--no-source",
        is_flag=True,
        help="Keep no copies of the program's source files in the trace.",
    ),
    "halt": _row(
        "--halt", is_flag=True, help="Stop the program at the first finding of severity error."
    ),
    "baseline": _row(
        "--baseline",
        **_FILE,
        help="Count the findings of this file, but do not report them. See --write-baseline.",
    ),
    "select": _row(
        "--select",
        **_CODES,
        help="Check only these rules (by code or prefix, such as TC201 or TC2) and relations (by "
        "name). Repeatable; separate several with commas.",
    ),
    "ignore": _row(
        "--ignore",
        **_CODES,
        help="Skip these rules and relations. Takes the same values as --select.",
    ),
    "fail_on": _row(
        "--fail-on",
        type=click.Choice(SEVERITIES[::-1]),
        help="Exit with 1 if a finding has at least this severity. [default: warning]",
    ),
    "allow_empty": _row(
        "--allow-empty", is_flag=True, help="Exit with 0, not 4, when nothing was checked."
    ),
    "require_steps": _row(
        "--require-steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="Exit with 4 when fewer than N training steps were recorded.",
    ),
    "config": _row(
        "--config",
        **_FILE,
        help="Configuration file. [default: the nearest traincheck.toml, or pyproject.toml with "
        "[tool.traincheck], in this directory or above]",
    ),
    "stall_timeout": _row(
        "--stall-timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=60.0,
        show_default=True,
        help="In a live run, report a rank that records nothing for this long while other ranks "
        "wait for it in a collective.",
    ),
    "reports": _row(
        "--report",
        "reports",
        metavar="FORMAT=FILE",
        shell_complete=_completion.reports,
        multiple=True,
        help=f"Also write the report to FILE: {FORMAT_NAMES}. Repeatable.",
    ),
    "html": _row(
        "--html", **_FILE, help="Also write the result as one HTML page, see traincheck report."
    ),
    "to": _row(
        "--to",
        metavar="NAME[=TARGET]",
        shell_complete=_completion.receivers,
        multiple=True,
        help="Send findings and the report to wandb, mlflow, tensorboard, webhook=URL, "
        "prometheus=FILE.prom, logging=FILE, or a receiver that an installed package adds. "
        "Repeatable. [default: the [sinks] of the configuration; none: nowhere]",
    ),
    "on_finding": _row(
        "--on-finding",
        metavar="COMMAND",
        multiple=True,
        help="Run COMMAND for each finding, as soon as it is known: with TRAINCHECK_CODE, "
        "TRAINCHECK_TEXT and others in its environment, and JSON on stdin. Repeatable.",
    ),
    "tracker": _row(
        "--to",
        metavar="NAME",
        shell_complete=_completion.trackers,
        callback=_known_tracker,
        help="Send the metrics to an experiment tracker instead, as its own settings say: wandb, "
        "mlflow, tensorboard, or one that an installed package adds.",
    ),
}
SELECTION = ("select", "ignore", "fail_on", "allow_empty", "require_steps", "config")
RECEIVERS = ("to", "on_finding")


def shared(name: str, **changes: Any) -> Callable[[_Decorated], _Decorated]:
    """The option of a row, with other settings where a command needs them."""
    names, settings = _TABLE[name]
    return click.option(*names, **{**settings, **changes})


def shared_all(*names: str) -> Callable[[_Decorated], _Decorated]:
    """The options of several rows, in this order."""

    def add(command: _Decorated) -> _Decorated:
        for name in reversed(names):
            command = shared(name)(command)
        return command

    return add


def form(*names: str, help: str = "Format of the output.") -> Callable[[_Decorated], _Decorated]:
    """The option --format with these values; the first one is the default."""
    return shared("form", type=click.Choice(names), default=names[0], help=help)


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A number of bytes, with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes."""
        found = _SIZE.fullmatch(str(value).strip().upper())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is not a size; use a value such as 100MB, 2GB or 0", param, ctx)
        size = int(float(found[1]) * _UNITS[found[2]])
        if 0 < size < _LEAST:
            self.fail(f"{value!r} is too small; the minimum is {size_text(_LEAST)}", param, ctx)
        return size


def size_text(size: int) -> str:
    """``100 MB``."""
    unit = next((u for u in ("TB", "GB", "MB", "KB") if size >= _UNITS[u]), "B")
    return f"{size / _UNITS[unit]:g} {unit}"


def overridden(config: _Table, options: Mapping[str, Any], place: str = "") -> _Table:
    """Values of a table of the configuration, where the command line does not say otherwise.

    place: of the table, for messages.

    Raises:
        UsageError: a number of steps is too small or too large.
    """
    given = {name: options[name] for name in config.__struct_fields__}
    # An empty tuple or False is an option not given, but 0 is a number of steps.
    made = config.replace(
        **{n: v for n, v in given.items() if v is not None and v is not False and v != ()}
    )
    for name, lowest in (("every", 1), ("warmup", 0)):
        value = getattr(made, name)
        if value is not None and not lowest <= value <= MOST_STEPS:
            raise UsageError(
                f"{name}{place} is {value}", fix=f"make it a number from {lowest} to {MOST_STEPS}"
            )
    return made


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
