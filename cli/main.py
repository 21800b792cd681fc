"""The command group, and the entry of every console script: errors become messages and statuses.

Loads a command only when it is asked for: `--help` answers before torch or pandas could be found.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from traincheck.errors import TraincheckError, UsageError
from traincheck.schema.words import printable_lines
from traincheck.version import VERSION

from ._os_errors import bad_path, discard_stream, ignore_closed_stderr

BAD_USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141  # as a program that SIGPIPE ends
OUR_BUG = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where a command is, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "run": Row(module=".cmd_run", attribute="run", help="Run a program and report silent bugs."),
    "collect": Row(module=".cmd_collect", attribute="collect", help="Record a training run."),
    "infer": Row(module=".cmd_infer", attribute="infer", help="Learn invariants from good runs."),
    "check": Row(module=".cmd_check", attribute="check", help="Check a recorded or live run."),
    "diff": Row(
        module=".cmd_diff", attribute="diff", help="Find the first difference between two runs."
    ),
    "facts": Row(
        module=".cmd_facts", attribute="facts", help="Show what a run did, the unusual first."
    ),
    "monitor": Row(
        module=".cmd_monitor", attribute="monitor", help="Record metrics of a training program."
    ),
    "metrics": Row(module=".cmd_monitor", attribute="metrics", help="Show recorded metrics."),
    "profile": Row(
        module=".cmd_profile",
        attribute="profile",
        help="Profile layers: time, memory, FLOPs, first NaN.",
    ),
    "report": Row(
        module=".cmd_report", attribute="report", help="Show a recorded run as one HTML page."
    ),
    "status": Row(
        module=".cmd_view", attribute="status", help="Print where a run stands, in one line."
    ),
    "top": Row(module=".cmd_view", attribute="top", help="Watch a run in the terminal."),
    "probe": Row(
        module=".cmd_probe",
        attribute="probe",
        help="Test a program by experiments on copies of it.",
    ),
    "rules": Row(module=".cmd_rules", attribute="rules", help="List and explain built-in rules."),
    "invariants": Row(
        module=".cmd_invariants",
        attribute="invariants",
        help="Inspect, compare and merge invariants.",
    ),
    "trace": Row(module=".cmd_trace", attribute="trace", help="Inspect or convert a trace."),
}


def _suggest_run(words: Sequence[str]) -> None:
    """Suggest `traincheck run` where a program is named without a command.

    Raises:
        UsageError: a program is named; the fix is the command line that runs it.
    """
    from ._program_args import suggested_run

    line = suggested_run(words)
    if line is not None:
        raise UsageError(f"{words[0]!r} is not a command of traincheck", fix=line)


def load(name: str) -> click.Command:
    """The command of one row of the table."""
    row = COMMANDS[name]
    command = getattr(importlib.import_module(row.module, __package__), row.attribute)
    assert isinstance(command, click.Command)
    return command


class _Commands(MutableMapping[str, click.Command]):
    """The table as a mapping for click. An entry is imported when it is looked up."""

    def __init__(self) -> None:
        self._added: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        return self._added[name] if name in self._added else load(name)

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._added[name] = command

    def __delitem__(self, name: str) -> None:
        del self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**COMMANDS, **self._added})

    def __len__(self) -> int:
        return len({**COMMANDS, **self._added})

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS or name in self._added


class _Group(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are used

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)  # click empties the list it is given
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            _suggest_run(words)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            _suggest_run(args)
        return super().resolve_command(ctx, args)

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        return run(self, "traincheck", *args, **kwargs)


@click.group(
    cls=_Group, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(VERSION, "-V", "--version", prog_name="traincheck")
def main() -> None:
    """Find silent bugs in PyTorch training.

    Check a program, without any change to it:

    \b
      traincheck run train.py

    Record a good run, learn invariants from it, and check another run against them:

    \b
      traincheck collect -o traces/good -p train.py
      traincheck infer   -t traces/good -o invariant.json
      traincheck collect -o traces/new -p new.py
      traincheck check   -t traces/new -i invariant.json
    """  # noqa: D301  # click reads the escape


def collect_main() -> int:
    """Entry point of traincheck-collect."""
    return run(load("collect"), "traincheck-collect")


def infer_main() -> int:
    """Entry point of traincheck-infer."""
    return run(load("infer"), "traincheck-infer")


def check_main() -> int:
    """Entry point of traincheck-check."""
    return run(load("check"), "traincheck-check")


def run(command: click.Command, name: str, args: Sequence[str] | None = None) -> int:
    """Run a click command, by default on the command line, and return its exit status.

    Nothing is raised.
    """
    for one in ("stdout", "stderr"):
        stream = getattr(sys, one)
        if stream is None:  # it was closed when we were started
            setattr(sys, one, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # names may hold what it has no letters for
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _invoke(command, name, list(sys.argv[1:] if args is None else args))
        sys.stdout.flush()  # here, so that a reader that left is noticed here
    except click.ClickException as error:
        with ignore_closed_stderr():
            error.show()
        return BAD_USAGE  # click itself has 1 for some, which means findings
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TraincheckError as error:
        _print_error(f"error: {error.message}")
        if error.fix:
            _print_error(f"  fix: {error.fix}")
        return error.exit_code
    except BrokenPipeError:
        discard_stream(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        found = bad_path(error)
        if found is None:
            return _our_bug(error)
        _print_error(f"error: {found[0]}")
        _print_error(f"  fix: {found[1]}")
        discard_stream(sys.stdout)
        return BAD_USAGE
    except Exception as error:  # the last resort of a program: never a bare traceback
        return _our_bug(error)
    return status


def _invoke(command: click.Command, name: str, args: list[str]) -> int:
    """Run a command by click's own main, which also completes words for a shell."""
    streams = sys.stdout, sys.stderr
    try:
        found = command.main(args, name, standalone_mode=False)
    except click.Abort as stop:
        if isinstance(stop.__cause__, EOFError):  # nothing is read from the keyboard
            raise stop.__cause__ from None
        raise
    except SystemExit as stop:
        if sys.stdout is not streams[0]:  # click replaces it when its reader left
            sys.stdout, sys.stderr = streams
            raise BrokenPipeError from None
        if isinstance(stop.code, str):
            _print_error(stop.code)
            return 1
        return stop.code or 0
    return found if isinstance(found, int) else 0


def _our_bug(error: Exception) -> int:
    _print_error(f"error: this is a bug in traincheck: {type(error).__name__}: {error}")
    if os.environ.get("TRAINCHECK_DEBUG"):
        import traceback

        traceback.print_exception(error)
    else:
        import platform
        from importlib import metadata

        found = [f"traincheck {VERSION}", f"Python {platform.python_version()}"]
        with contextlib.suppress(metadata.PackageNotFoundError):  # without an import of torch
            found.append(f"torch {metadata.version('torch')}")
        versions = ", ".join([*found, platform.platform(terse=True)])
        _print_error(
            "  fix: report it to whoever gave you this copy. Include the command line, the output "
            f"with TRAINCHECK_DEBUG=1 set, and the versions: {versions}"
        )
    return OUR_BUG


def _print_error(text: str) -> None:
    with ignore_closed_stderr():
        click.echo(printable_lines(text), err=True)
